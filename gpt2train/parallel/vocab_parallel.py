"""Token embedding and loss with a vocabulary sharded over a tensor-parallel group.

Rows are split into contiguous shards, of equal size since the vocabulary is padded to a multiple of 128. Input and
output use the same parameter, so that the tie is preserved.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.compat.torch_compile import compiled_result
from gpt2train.model.loss import CHUNK, IGNORE, MASKED_LOGIT, GradientInForward, add_product, soft_cap_, softmax_terms
from gpt2train.parallel.tp_collectives import Region


def embed(tokens: Tensor, weight: Tensor, region: Region) -> Tensor:
    """Look up embeddings [batch, length, width], with a local weight [vocab / size, width]."""
    row = tokens - region.rank * weight.shape[0]
    elsewhere = (row < 0) | (row >= weight.shape[0])
    found = F.embedding(row.masked_fill(elsewhere, 0), weight)
    return region.leave(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))


def logits(hidden: Tensor, weight: Tensor, region: Region) -> Tensor:
    """Logits over the whole vocabulary, on every process, for sampling and scoring but not for a loss."""
    return region.gather_columns(F.linear(hidden, weight))


def log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    rows: Tensor | None,
    region: Region,
    vocab: int,
    cap: Callable[[Tensor], Tensor],
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities as of `CausalLM.log_probs`, on every process, from four numbers for each target and process.

    Gathering the logits would take 200 kB for each target at a vocabulary of 50,257 in place of 32 bytes.

    Args:
        hidden: last hidden states [states, hidden], equal on all processes.
        weight: [vocab / size, hidden], the rows of this process.
        targets: int64 [targets], token ids.
        rows: row of `hidden` before each target.
        region: tensor-parallel group.
        vocab: number of rows of the whole weight that are tokens.
        cap: function of the logits.
        chunk: hidden states whose logits are in memory at a time.
    """
    first = region.rank * len(weight)
    own = weight[: max(0, vocab - first)]
    if len(own):
        chosen, top, total, best = softmax_terms(hidden, own, targets - first, rows, cap, chunk)
        numbers = torch.stack((chosen.double(), top.double(), total.double(), (best + first).double()))
    else:  # a shard of padding only
        numbers = torch.tensor([-torch.inf, -torch.inf, 0, -1], dtype=torch.float64, device=hidden.device)
        numbers = numbers[:, None].repeat(1, len(targets))
    if not len(targets):
        return numbers[0].float(), numbers[0] > 0
    picked, tops, totals, tokens = region.all_gather(numbers).unbind(1)
    largest, winner = tops.max(0)
    whole = (totals * (tops - largest).exp()).sum(0)
    greedy = tokens.gather(0, winner[None])[0] == targets
    return (picked.amax(0) - largest - whole.log()).float(), greedy


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    region: Region,
    vocab: int | None = None,
    softcap: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Sum over the targets of -log softmax(hidden @ whole.T)[target], float32, bitwise equal on every process.

    This is `gpt2train.model.loss.chunked_cross_entropy` on a vocabulary shard: at most one chunk of this process's
    logits is in memory. Hidden states are gathered once before, not per chunk: in total they take 16 MiB, a chunk of
    logits 200 MiB (8 x 1,024 tokens of width 1,024 in bfloat16; 4,096 rows of 25,152, the half of 50,304), and each
    gather needs a collective in forward and backward.

    Args:
        hidden: [..., width], equal on all processes; its gradient is partial, to be summed over them.
        weight: [vocab / size, width], the rows of this process.
        targets: int64 [...], equal on all processes; positions with -100 are ignored.
        region: tensor-parallel group.
        vocab: number of rows of the whole weight that are tokens; the rows above are padding and excluded.
        softcap: bound of the logits.
        z_loss: factor of the second term; with it the result has two.
    """
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    tokens = len(weight) * region.size if vocab is None else vocab
    own = max(0, tokens - region.rank * len(weight))  # rows of this process that are tokens
    return _CrossEntropy.apply(
        hidden.flatten(0, -2), weight, targets.flatten(), region, own, softcap, z_loss, needs_grad
    )


class _CrossEntropy(GradientInForward):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        region: Region,
        own: int,
        softcap: float,
        z_loss: float,
        needs_grad: bool,
    ) -> Tensor:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        squares = torch.zeros_like(loss)
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        matrix = weight.to(dtype)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        # A smaller vocabulary allows proportionally more rows. All processes have the same number of chunks.
        size = CHUNK.get(device, 1024) * region.size
        for start in range(0, hidden.shape[0], size):
            rows = hidden[start : start + size].to(dtype)
            target = targets[start : start + size].unsqueeze(1)
            valid = (target != IGNORE).float()
            column = target - region.rank * weight.shape[0]
            here = (column >= 0) & (column < weight.shape[0])
            column = column.masked_fill(~here, 0)
            shard_logits = (rows @ matrix.t()).float()
            slope = soft_cap_(shard_logits, softcap, needs_grad) if softcap else None
            shard_logits[:, own:] = MASKED_LOGIT
            top = shard_logits.amax(1, keepdim=True)
            picked = shard_logits.gather(1, column) * here
            total = shard_logits.sub_(top).exp_().sum(1, keepdim=True)
            largest, whole, found = _merge_log_sum_exp(top, total, picked, region)
            log_z = whole.log() + largest
            loss += ((log_z - found) * valid).sum()
            factor = valid * (top - largest).exp() / whole
            if z_loss:
                squares += (log_z.square() * valid).sum()
                factor *= 1 + 2 * z_loss * log_z
            if grad_hidden is None or grad_weight is None:
                continue
            grad = shard_logits.mul_(factor).scatter_add_(1, column, -valid * here)
            grad = (grad if slope is None else grad.mul_(slope)).to(dtype)
            slope = None  # freed before the logits of the next chunk are made
            grad_hidden[start : start + size] = grad @ matrix
            add_product(grad_weight, grad, rows)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        return torch.stack((loss, z_loss * squares)) if z_loss else compiled_result(loss)


def _merge_log_sum_exp(top: Tensor, total: Tensor, picked: Tensor, region: Region) -> tuple[Tensor, Tensor, Tensor]:
    """Largest logit, sum of exp(logit - largest) and the target's logit over all shards, each [rows, 1].

    It takes one collective of three numbers per row; reducing the maximum first and then the sum would take two or
    three collectives.
    """
    tops, totals, found = region.all_gather(torch.cat((top, total, picked), 1)).split(1, dim=2)
    largest = tops.amax(0)
    return largest, (totals * (tops - largest).exp()).sum(0), found.sum(0)
