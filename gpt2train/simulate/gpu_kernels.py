"""Tensors that the kernels of a GPU keep for the backward pass, where those of a CPU keep more.

| operation | a GPU keeps | a CPU |
|---|---|---|
| attention with dropout or with a bias that needs a gradient | no matrix of context x context | the probabilities |
| RMSNorm | input in float32, a number per row | also the normed input |
| dropout | a mask of a byte per number | a mask in the dtype of the input |
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.compat.torch_simulation import efficient_attention

_attention_on_cpu = F.scaled_dot_product_attention
_dropout_on_cpu = F.dropout


@contextlib.contextmanager
def gpu_kernels() -> Iterator[None]:
    """Context in which operations on CPU tensors keep for the backward pass what the kernels of a GPU keep.

    A `TorchFunctionMode` in place of the patches would be off in the backward pass, where recomputation needs it.
    """
    kernels = {"scaled_dot_product_attention": _attention, "rms_norm": _rms_norm, "dropout": _dropout}
    with contextlib.ExitStack() as patches:
        for name, kernel in kernels.items():
            patches.enter_context(mock.patch.object(F, name, kernel))
        yield


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is None or not attn_mask.requires_grad:
        return _attention_on_cpu(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    bias = attn_mask.expand(*query.shape[:-1], key.shape[2])
    if torch.is_autocast_enabled("cpu"):
        query, key, value, bias = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value, bias))
    return efficient_attention(query, key, value, bias, True, 0.0, is_causal, scale=scale)[0]


def _rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """RMSNorm by one kernel; autocast on a GPU has it in float32."""
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.float(), None if weight is None else weight.float()
    normed: Tensor = _FusedRMSNorm.apply(x, weight)
    return normed


class _FusedRMSNorm(torch.autograd.Function):
    """Shapes of the fused kernel's results alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1)))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or not 0 < p < 1:
        return _dropout_on_cpu(x, p, training, inplace)
    return torch.native_dropout(x, p, True)[0]
