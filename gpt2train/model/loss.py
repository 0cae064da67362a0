"""Chunked cross-entropy of a tied output projection, which never materialises the logits of all positions.

At 16 x 1,024 tokens and a vocabulary of 50,304 the float32 logits alone are 3.3 GB, and autograd keeps them twice.
Here the gradient is computed chunk by chunk in the forward pass (the idea of the Liger kernel), so that the peak is one
chunk of logits.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpt2train.compat.torch_compile import compiled_result
from gpt2train.model.shape import COMPILED_CHUNK, LOGIT_CHUNK

IGNORE = -100
CHUNK = LOGIT_CHUNK  # of code that is not compiled
LOGIT_ROWS = 256  # the same for log-probabilities: 51 MB in float32 at a vocabulary of 50,257
MASKED_LOGIT = -1e30  # logit of a padding row of the vocabulary; finite, since a vocabulary shard can be padding only


class GradientInForward(torch.autograd.Function):
    """Loss of (hidden states, weight, …) whose `forward` saves both gradients; `backward` only scales them.

    A loss of several terms is a vector; the gradients saved are those of their sum.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the saved gradients by the gradient of the loss."""
        scale = grad_output[0].flatten()[0]  # the terms are summed, so that all have the same
        grad_hidden, grad_weight = ctx.saved_tensors
        # In place, since memory use peaks here. A second backward raises, because the saved tensors have changed.
        return grad_hidden.mul_(scale), grad_weight.mul_(scale), *(None for _ in ctx.needs_input_grad[2:])


class _ChunkedCrossEntropy(GradientInForward):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        vocab: int,
        softcap: float,
        z_loss: float,
        compiled_chunk: int,
        needs_grad: bool,
    ) -> Tensor:
        # By row, to be summed at the end: compiled code fuses a sum of each chunk with that of the last one, and makes
        # all chunks of logits before it uses the first: 8.2 GB at 64 x 1,024 tokens in place of 3.5.
        lost: list[Tensor] = []
        squared: list[Tensor] = []
        # Autocast does not cast the matrix products inside an autograd function.
        dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
        matrix = weight if dtype is None else weight.to(dtype)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        size, compiling = CHUNK.get(hidden.device.type, 1024), torch.compiler.is_compiling()
        if compiling and hidden.device.type != "cpu":
            size = compiled_chunk
        for start in range(0, hidden.shape[0], size):
            rows = hidden[start : start + size].to(matrix.dtype)
            target = targets[start : start + size].unsqueeze(1)
            valid = (target != IGNORE).float()
            column = target.clamp_min(0)
            # In place from here on: each pass over the logits costs a tenth of the matrix product.
            logits = (rows @ matrix.t()).float()
            slope = soft_cap_(logits, softcap, needs_grad) if softcap else None
            logits[:, vocab:] = MASKED_LOGIT
            top = logits.amax(1, keepdim=True)
            if compiling:  # compared, not gathered: one kernel reads the logits of a chunk, and no later one needs them
                hit = torch.arange(logits.shape[1], device=logits.device) == column
                picked = torch.where(hit, logits, 0.0).sum(1, keepdim=True)
            else:
                picked = logits.gather(1, column)
            total = logits.sub_(top).exp_().sum(1, keepdim=True)
            log_z = total.log() + top
            lost.append((log_z - picked) * valid)
            factor = valid / total
            if z_loss:
                squared.append(log_z.square() * valid)
                factor *= 1 + 2 * z_loss * log_z
            if grad_hidden is None or grad_weight is None:
                continue
            if compiling:
                grad = logits * factor - torch.where(hit, valid, 0.0)
            else:
                grad = logits.mul_(factor).scatter_add_(1, column, -valid)
            grad = (grad if slope is None else grad.mul_(slope)).to(matrix.dtype)
            slope = None  # freed before the logits of the next chunk are made
            grad_hidden[start : start + size] = grad @ matrix
            add_product(grad_weight, grad, rows)
        loss = torch.cat(lost).sum()
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        return torch.stack((loss, z_loss * torch.cat(squared).sum())) if z_loss else compiled_result(loss)


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Keep logits between -cap and cap: cap * tanh(logits / cap) (Gemma Team 2024, "Gemma 2"); 0 changes nothing."""
    return (logits / cap).tanh() * cap if cap else logits


def soft_cap_(logits: Tensor, cap: float, needs_grad: bool) -> Tensor | None:
    """Apply `soft_cap` in place; returns the derivative of each logit if it is needed."""
    logits.div_(cap).tanh_()
    slope = logits.square().neg_().add_(1) if needs_grad else None
    logits.mul_(cap)
    return slope


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left.T @ right to a float32 total, in place; the product is computed in the factors' precision.

    Half-precision factors are not cast to float32, since this product is a third of the work of the head: by its data
    sheet an H100 does 67 TFLOP/s in float32, about 495 in TensorFloat-32 and 989 in bfloat16.
    """
    if left.dtype == total.dtype:
        total.addmm_(left.t(), right)
    else:
        total += left.t() @ right


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab: int | None = None,
    softcap: float = 0.0,
    z_loss: float = 0.0,
    compiled_chunk: int = COMPILED_CHUNK,
) -> Tensor:
    """Sum over the targets of -log softmax(hidden @ weight.T)[target], in float32.

    With `z_loss` a vector of two terms, which are to be summed: this one, and z_loss times the sum of (log Z)^2, Z the
    sum of exp(logit), which keeps logits from drifting (Chowdhery et al. 2022, "PaLM").

    Args:
        hidden: [..., width], the last hidden states.
        weight: [vocab, width], the output embedding.
        targets: int64 [...]; positions with -100 are ignored.
        vocab: number of rows that are tokens; the rows above are padding and excluded. All rows by default.
        softcap: bound of the logits (`soft_cap`).
        z_loss: factor of the second term.
        compiled_chunk: rows of logits at a time in compiled code on a GPU.
    """
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    tokens = len(weight) if vocab is None else vocab
    return _ChunkedCrossEntropy.apply(
        hidden.flatten(0, -2), weight, targets.flatten(), tokens, softcap, z_loss, compiled_chunk, needs_grad
    )


def softmax_terms(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    rows: Tensor | None,
    cap: Callable[[Tensor], Tensor],
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Terms of the log-probability of each target under a softmax over some rows of an output weight.

    Args:
        hidden: last hidden states, [states, hidden].
        weight: rows of the output weight, at least one, [tokens, hidden].
        targets: row of the weight of each target, int64 [targets]; others are targets elsewhere.
        rows: as in `CausalLM.log_probs`.
        cap: function of the logits.
        chunk: hidden states whose logits are in memory at a time.

    Returns:
        Logit of each target (-inf elsewhere), largest logit, sum of exp(logit - largest), float32 [targets], and row of
        the largest one, int64 [targets].
    """
    rows = torch.arange(len(targets), device=targets.device) if rows is None else rows
    terms = torch.zeros(3, len(targets), device=hidden.device)
    best = torch.zeros_like(targets)
    for start in range(0, len(hidden), chunk):
        here = ((rows >= start) & (rows < start + chunk)).nonzero().flatten()
        at, target = rows[here] - start, targets[here]
        logits = cap(F.linear(hidden[start : start + chunk], weight)).float()
        known = (target >= 0) & (target < len(weight))
        chosen = logits[at, target.where(known, 0)].masked_fill(~known, -torch.inf)
        top, first = logits.max(1, keepdim=True)
        # In place: logits are the largest tensor here, and a copy takes as long as a tenth of their product.
        total = logits.sub_(top).exp_().sum(1)
        terms[:, here] = torch.stack((chosen, top[at, 0], total[at]))
        best[here] = first[at, 0]
    return *terms, best
