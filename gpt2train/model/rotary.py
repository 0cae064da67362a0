"""Rotary positions (Su et al. 2021, "RoFormer"), with the scalings of `gpt2train.model.rope_scaling`.

The order of dimensions in a head is that of `transformers`, half by half, and so is the arithmetic: a rounding error of
a frequency grows with the position.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpt2train.compat.torch_compile import compiled_result
from gpt2train.model.rope_scaling import RopeScaling

Rotation = tuple[Tensor, Tensor]  # cosines, and sines that are negative in the first half, [..., head_dim] each


def rotation(positions: Tensor, frequencies: Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """Scaled cosines and sines of positions by frequencies [head_dim / 2], [*positions, 1, head_dim] each."""
    angles = positions[..., None, None] * frequencies
    cos, sin = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate pairs of numbers of each head by angles that grow with the position.

    Args:
        x: [batch, length, heads, head_dim]; number i is paired with number i + head_dim / 2.
        by: cosines and sines of the angles.
    """
    rotated: Tensor = _Rotate.apply(x, *by)
    return rotated


class _Rotate(torch.autograd.Function):
    """Three passes over x; autograd's own backward of these operations takes six."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return compiled_result((x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        (grad,) = grads
        return (grad * cos).addcmul_(grad.roll(grad.shape[-1] // 2, -1), sin, value=-1), None, None


def scaled_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None, length: int, device: torch.device | None = None
) -> tuple[Tensor, float]:
    """Frequencies of the pairs of a head, float32 [head_dim / 2], and a factor of cosines and sines.

    Those of dynamic scaling depend on the length of the longest text in tokens.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    if scaling is None:
        return 1.0 / theta**exponents, 1.0
    factor, original = scaling.factor, scaling.original_max_position_embeddings or 0
    if scaling.rope_type == "linear":
        return 1.0 / theta**exponents / factor, 1.0
    if scaling.rope_type == "dynamic":
        ratio = factor * max(length, original) / original - (factor - 1)
        return 1.0 / (theta * ratio ** (head_dim / (head_dim - 2))) ** exponents, 1.0
    if scaling.rope_type == "llama3":
        return _llama3(1.0 / theta**exponents, scaling, original), 1.0
    return _yarn(theta**exponents, theta, scaling, original), _yarn_attention(scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling, original: int) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend those between."""
    low, high = scaling.low_freq_factor or 0.0, scaling.high_freq_factor or 0.0
    lengths = 2 * math.pi / frequencies
    slow = frequencies / scaling.factor
    share = (original / lengths - low) / (high - low)
    blended = (1 - share) * frequencies / scaling.factor + share * frequencies
    return torch.where(lengths > original / low, slow, torch.where(lengths < original / high, frequencies, blended))


def _yarn(periods: Tensor, theta: float, scaling: RopeScaling, original: int) -> Tensor:
    """Blend frequencies and frequencies over the factor by a ramp over the dimensions."""
    half = len(periods)

    def dimension(rotations: float) -> float:
        """Dimension that rotates this often within the original length."""
        return half * math.log(original / (rotations * 2 * math.pi)) / math.log(theta)

    low, high = dimension(scaling.beta_fast or 32.0), dimension(scaling.beta_slow or 1.0)
    if scaling.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(half, dtype=torch.float32, device=periods.device) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


def _yarn_attention(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def growth(mscale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * mscale * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return growth(scaling.mscale) / growth(scaling.mscale_all_dim)
    return growth(1.0)
