"""Attention as a GPU has it: kernels that keep no matrix of context x context, also with dropout and learned biases."""

from contextlib import AbstractContextManager
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.compat.torch_simulation import efficient_attention

_on_cpu = F.scaled_dot_product_attention


def gpu_attention() -> AbstractContextManager[object]:
    """Context in which attention on CPU tensors keeps for the backward pass what the kernels of a GPU keep.

    On a CPU, attention with dropout or with a bias that needs a gradient falls back to plain matrix products. A GPU has
    kernels for both. A `TorchFunctionMode` in place of the patch would be off in the backward pass, where recomputation
    needs it.
    """
    return mock.patch.object(F, "scaled_dot_product_attention", _attention)


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
        return _on_cpu(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    bias = attn_mask.expand(*query.shape[:-1], key.shape[2])
    if torch.is_autocast_enabled("cpu"):
        query, key, value, bias = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value, bias))
    return efficient_attention(query, key, value, bias, True, 0.0, is_causal, scale=scale)[0]
