"""RMSNorm (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"), fused on a CPU too.

On a CPU torch makes it of eight operations: forward and backward of 1,024 x 192 numbers took 2.6 ms on one core, with
this function 1.0 ms, and LayerNorm, which has a kernel of its own, 0.5 ms.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpt2train.compat.torch import layer_norm_backward


class RMSNorm(nn.RMSNorm):
    """RMSNorm of the last dimension, with a weight."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., width]."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    plain = x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != x.dtype
    if plain or eps is None or torch.compiler.is_compiling():
        return F.rms_norm(x, weight.shape, weight, eps)
    normed: Tensor = _RMSNorm.apply(x, weight, eps)
    return normed


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        # LayerNorm with a mean of 0 also subtracts the mean of grad * weight, which is added again.
        grad = grads[0].contiguous()
        grad_x, grad_weight = layer_norm_backward(grad, x, torch.zeros_like(scale), scale, weight)
        mean = (grad @ weight).div_(weight.numel()).unsqueeze(-1)
        return grad_x.add_(mean.mul_(scale)), grad_weight, None
