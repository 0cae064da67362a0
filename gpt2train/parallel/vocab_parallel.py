"""Token embedding and loss with a vocabulary sharded over a tensor-parallel group.

Rows are split into contiguous shards, of equal size since the vocabulary is padded to a multiple of 128. Input and
output use the same parameter, so that the tie is preserved.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.model.loss import VocabularyShard, chunked_cross_entropy, softmax_terms
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
        targets: int64 [...], equal on all processes.
        region: tensor-parallel group.
        vocab: number of rows of the whole weight that are tokens.
        softcap: bound of the logits.
        z_loss: factor of the second term.
    """
    shard = VocabularyShard(region.rank, region.size, partial(_merge_log_sum_exp, region))
    return chunked_cross_entropy(hidden, weight, targets, vocab, softcap, z_loss, shard=shard)


def _merge_log_sum_exp(region: Region, top: Tensor, total: Tensor, picked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest logit, sum of exp(logit - largest) and the target's logit over all shards, each [rows, 1].

    It takes one collective of three numbers per row; reducing the maximum first and then the sum would take two or
    three collectives.
    """
    tops, totals, found = region.all_gather(torch.cat((top, total, picked), 1)).split(1, dim=2)
    largest = tops.amax(0)
    return largest, (totals * (tops - largest).exp()).sum(0), found.sum(0)
