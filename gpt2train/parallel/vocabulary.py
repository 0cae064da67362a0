"""Token embedding and loss over a vocabulary of which each process of a tensor-parallel group has a part.

Rows are cut into equal parts, in order; the padding of the vocabulary to 128 makes them equal. The same weight is
read on the way in and on the way out, so the tie stays what it was: one parameter.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.model.loss import CHUNK, IGNORE, NEVER, GradientInForward, add_product
from gpt2train.parallel.regions import Region


def embed(tokens: Tensor, weight: Tensor, region: Region) -> Tensor:
    """Rows of the whole embedding [batch, length, width], from a weight [vocab / size, width] here."""
    row = tokens - region.rank * weight.shape[0]
    elsewhere = (row < 0) | (row >= weight.shape[0])
    found = F.embedding(row.masked_fill(elsewhere, 0), weight)
    return region.leave(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))


def logits(hidden: Tensor, weight: Tensor, region: Region) -> Tensor:
    """Logits over the whole vocabulary, on every process: for sampling and scoring, not for a loss."""
    return region.share(F.linear(hidden, weight))


def cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, region: Region, vocab: int | None = None) -> Tensor:
    """Sum over the targets of -log softmax(hidden @ whole.T)[target], float32, the same bits on every process.

    `gpt2train.model.loss.chunked_cross_entropy` on a part of the vocabulary: never more than a chunk of this process's
    logits is alive. Hidden states are gathered once before, not per chunk: whole they are 16 MiB where a chunk of
    logits is 200 (8 x 1,024 tokens of 1,024 in bfloat16; 4,096 rows of 25,152 in halves of two), and every
    gathering takes a collective forth and one back.

    Args:
        hidden: [..., width], equal on all processes; its gradient is a part, to be summed over them.
        weight: [vocab / size, width], the rows of this process.
        targets: int64 [...], equal on all processes; -100 marks positions that do not count.
        vocab: rows of the whole that are tokens; those above are padding and take no part.
    """
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    tokens = len(weight) * region.size if vocab is None else vocab
    own = max(0, tokens - region.rank * len(weight))  # of this process's rows
    return _CrossEntropy.apply(hidden.flatten(0, -2), weight, targets.flatten(), region, own, needs_grad)


class _CrossEntropy(GradientInForward):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, region: Region, own: int, needs_grad: bool
    ) -> Tensor:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        matrix = weight.to(dtype)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        # A part of the vocabulary leaves room for that many rows more. All processes make the same number of turns.
        size = CHUNK.get(device, 1024) * region.size
        for start in range(0, hidden.shape[0], size):
            rows = hidden[start : start + size].to(dtype)
            target = targets[start : start + size].unsqueeze(1)
            valid = (target != IGNORE).float()
            column = target - region.rank * weight.shape[0]
            here = (column >= 0) & (column < weight.shape[0])
            column = column.masked_fill(~here, 0)
            part = (rows @ matrix.t()).float()
            part[:, own:] = NEVER
            top = part.amax(1, keepdim=True)
            picked = part.gather(1, column) * here
            total = part.sub_(top).exp_().sum(1, keepdim=True)
            largest, whole, found = _together(top, total, picked, region)
            loss += ((whole.log() + largest - found) * valid).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            part.mul_(valid * (top - largest).exp() / whole)
            grad = part.scatter_add_(1, column, -valid * here).to(dtype)
            grad_hidden[start : start + size] = grad @ matrix
            add_product(grad_weight, grad, rows)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        return loss


def _together(top: Tensor, total: Tensor, picked: Tensor, region: Region) -> tuple[Tensor, Tensor, Tensor]:
    """Largest logit, sum of exp(logit - largest) and the target's logit over all parts, each [rows, 1].

    One collective of three numbers a row. To agree on the largest first and then to sum takes two or three.
    """
    tops, totals, found = region.everyone(torch.cat((top, total, picked), 1)).split(1, dim=2)
    largest = tops.amax(0)
    return largest, (totals * (tops - largest).exp()).sum(0), found.sum(0)
