"""Cross-entropy of a tied output projection that never holds the logits of all positions.

At 16 x 1,024 tokens and a vocabulary of 50,304 the float32 logits alone are 3.3 GB, and autograd keeps them twice.
Here the gradient is formed chunk by chunk already in the forward pass (Liger kernel's idea), so that the peak is one
chunk of logits.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE = -100
# Rows of logits alive at a time. A CPU wants them in its cache: at a vocabulary of 50,304 and a width of 384, 256 rows
# take 1.36 s where 1,024 take 1.45 and 64 take 1.65. A GPU wants large matrices.
CHUNK = {"cpu": 256, "cuda": 2048}
NEVER = -1e30  # logit of a row that pads the vocabulary; finite, since a part of the vocabulary can be padding alone


class GradientInForward(torch.autograd.Function):
    """A loss of (hidden states, weight, …) whose `forward` has saved both gradients: nothing is left but to scale."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_output[0]
        grad_hidden, grad_weight = ctx.saved_tensors
        # In place, at the moment when most memory is in use. A second backward is refused: what was saved has changed.
        return grad_hidden.mul_(scale), grad_weight.mul_(scale), *(None for _ in ctx.needs_input_grad[2:])


class _ChunkedCrossEntropy(GradientInForward):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, vocab: int, needs_grad: bool) -> Tensor:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        # Under autocast the matmuls of this function would not be cast for us.
        dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
        matrix = weight if dtype is None else weight.to(dtype)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        size = CHUNK.get(hidden.device.type, 1024)
        for start in range(0, hidden.shape[0], size):
            rows = hidden[start : start + size].to(matrix.dtype)
            target = targets[start : start + size].unsqueeze(1)
            valid = (target != IGNORE).float()
            column = target.clamp_min(0)
            # In place from here on: each pass over the logits costs as much as a tenth of the product.
            logits = (rows @ matrix.t()).float()
            logits[:, vocab:] = NEVER
            top = logits.amax(1, keepdim=True)
            picked = logits.gather(1, column)
            total = logits.sub_(top).exp_().sum(1, keepdim=True)
            loss += ((total.log() + top - picked) * valid).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            grad = logits.mul_(valid / total).scatter_add_(1, column, -valid).to(matrix.dtype)
            grad_hidden[start : start + size] = grad @ matrix
            add_product(grad_weight, grad, rows)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        return loss


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left.T @ right to a float32 total, in place; the product in the factors' own precision.

    Half-precision factors are not made float32 for it, since this is a third of the work of the head: by its data sheet
    an H100 does 67 TFLOP/s in float32, about 495 in TensorFloat-32 and 989 in bfloat16.
    """
    if left.dtype == total.dtype:
        total.addmm_(left.t(), right)
    else:
        total += left.t() @ right


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, vocab: int | None = None) -> Tensor:
    """Sum over the targets of -log softmax(hidden @ weight.T)[target], in float32.

    Args:
        hidden: [..., width], the last hidden states.
        weight: [vocab, width], the output embedding.
        targets: int64 [...]; -100 marks positions that do not count.
        vocab: rows that are tokens; those above are padding and take no part. All of them where not given.
    """
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    tokens = len(weight) if vocab is None else vocab
    return _ChunkedCrossEntropy.apply(hidden.flatten(0, -2), weight, targets.flatten(), tokens, needs_grad)


def plain_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, vocab: int | None = None) -> Tensor:
    """The same number by the textbook: the twin that tests hold the chunked one against."""
    logits = (hidden.flatten(0, -2) @ weight[:vocab].t()).float()
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")
