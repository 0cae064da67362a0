"""Linear layers whose three matrix products, forward and backward, can be in 8-bit floating point ("fp8").

Each factor is divided by a scale, so that its largest number is the largest of the format, and rounded (Micikevicius et
al. 2022, "FP8 Formats for Deep Learning"). The scale is computed from the numbers themselves at each product:

    tensorwise   one scale per factor; inputs and weights in e4m3, gradients of outputs in e5m2
    rowwise      one scale per row of the first factor and per column of the second; all in e4m3

A GPU multiplies only sizes that are multiples of 16 (`gpt2train.parallel.layout` checks them). Products are summed in
float32 and returned in bfloat16. Weights and their gradients stay as they are. A factor with a NaN or an infinite
number gives a NaN in all results that depend on its scale.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpt2train.compat.torch_fp8 import as_own_tensor, scaled_product

INPUT = torch.float8_e4m3fn  # 3 bits of mantissa, up to 448
GRADIENT = {"tensorwise": torch.float8_e5m2, "rowwise": torch.float8_e4m3fn}  # e5m2: 2 bits, up to 57,344
# Largest absolute number below which a scale no longer follows it: the scale of zeros, and far above the smallest
# float32, so that the product of two scales is not rounded to 0.
SMALLEST = 2.0**-80

Factor = tuple[Tensor, Tensor]  # numbers in 8 bits, and the scale to multiply them by


def quantise(x: Tensor, dtype: torch.dtype, dim: int | None) -> Factor:
    """Divide a matrix by its scale, and round it to 8 bits.

    Args:
        x: matrix.
        dtype: format in 8 bits.
        dim: dimension of the sum in the product, which has one scale; None for one scale of the matrix.

    Returns:
        The matrix in 8 bits, and its float32 scale: a scalar, or of size 1 in `dim`.
    """
    largest = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    scale = largest.float().clamp(min=SMALLEST) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


class Linear(nn.Linear):
    """Linear layer; base class of those of tensor parallelism.

    Attributes:
        fp8: "off", "tensorwise" or "rowwise".
    """

    fp8: str = "off"

    def forward(self, x: Tensor) -> Tensor:
        """Compute x @ weight.T + bias."""
        return self.product(x, self.weight, self.bias)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute x @ weight.T + bias; in 8 bits only in training, so that validation measures the weights as saved."""
        if self.fp8 == "off" or not torch.is_grad_enabled():
            return F.linear(x, weight, bias)
        result: Tensor = _Fp8Product.apply(x.to(torch.bfloat16), weight, bias, self.fp8)
        return result


def use_fp8(blocks: nn.Module, fp8: str) -> None:
    """Let the linear layers of some blocks multiply in 8 bits, in place; after tensor parallelism.

    Classes of a plug-in with a product of their own keep it.
    """
    for module in blocks.modules() if fp8 != "off" else ():
        if type(module) is nn.Linear:
            module.__class__ = Linear
        if isinstance(module, Linear):
            module.fp8 = fp8


class _Fp8Product(torch.autograd.Function):
    """x @ weight.T + bias, [..., inner] to [..., outer].

    The weight is saved as it is, since FSDP may free its memory until the backward pass, and rounded again there.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fp8: str) -> Tensor:
        ctx.fp8, ctx.bias_dtype = fp8, None if bias is None else bias.dtype
        dim = 1 if fp8 == "rowwise" else None
        rows = quantise(x.reshape(-1, x.shape[-1]), INPUT, dim)
        columns = _transposed(quantise(weight.to(x.dtype), INPUT, dim))
        # With one scale, the input in 8 bits serves the gradient of the weight too, and takes half the memory.
        saved = rows if dim is None else (x,)
        ctx.save_for_backward(weight, *saved)
        y = _multiply(rows, columns, None if bias is None else bias.to(x.dtype), fast_sums=True)
        return as_own_tensor(y, (*x.shape[:-1], weight.shape[0]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        weight, *saved = ctx.saved_tensors
        grad, dtype = grads[0].reshape(-1, weight.shape[0]), GRADIENT[ctx.fp8]
        by_row = ctx.fp8 == "rowwise"
        first = quantise(grad, dtype, 1 if by_row else None)
        of_input = _multiply(first, quantise(weight.to(grad.dtype), INPUT, 0 if by_row else None))
        if by_row:
            x = saved[0].reshape(-1, weight.shape[1])
            first, inputs = quantise(grad, dtype, 0), quantise(x, INPUT, 0)
        else:
            inputs = saved[0], saved[1]
        of_weight = _multiply(_transposed(first), inputs)
        of_bias = None if ctx.bias_dtype is None else grad.sum(0).to(ctx.bias_dtype)
        size = (*grads[0].shape[:-1], weight.shape[1])
        return as_own_tensor(of_input, size), of_weight.to(weight.dtype), of_bias, None


def _multiply(a: Factor, b: Factor, bias: Tensor | None = None, fast_sums: bool = False) -> Tensor:
    """Multiply two matrices in 8 bits, in the order of memory that a GPU needs.

    Gradients are summed without shortcuts: those of a weight have as many terms as a micro-batch has tokens.
    """
    by_row = a[1].dim() > 0
    scales = (a[1].reshape(-1, 1), b[1].reshape(1, -1)) if by_row else (a[1], b[1])
    return scaled_product(a[0].contiguous(), scales[0], b[0].t().contiguous().t(), scales[1], bias, fast_sums)


def _transposed(factor: Factor) -> Factor:
    return factor[0].t(), factor[1]
