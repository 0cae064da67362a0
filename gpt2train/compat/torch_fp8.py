"""Private parts of torch for products of 8-bit floating-point matrices.

`torch.nn.functional.scaled_mm` is public, but torch 2.11 has no implementation of it for a CPU, and no count of its
FLOPs. tests/gpt2train/compat/test_torch.py holds both against the product in float32. The range of torch is
`gpt2train.compat.torch.TORCH`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Operator that `scaled_product` calls, for a policy of selective activation checkpointing. Breaks with an error at
# import.
SCALED_PRODUCT = torch.ops.aten._scaled_mm.default

# Products on a CPU with a scale for each row. Older releases have one scale for the whole matrix.
CPU_HAS_ROW_SCALES = torch.__version__ >= "2.13"


def scaled_product(
    a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, bias: Tensor | None, fast_sums: bool
) -> Tensor:
    """Return (a * scale_a) @ (b * scale_b) + bias in bfloat16.

    Breaks when the operator's arguments change, with an error at the first product.

    Args:
        a: float8 [m, k], contiguous.
        scale_a: float32 scalar, or [m, 1] together with `scale_b` [1, n].
        b: float8 [k, n], whose transpose is contiguous.
        scale_b: as `scale_a`.
        bias: bfloat16 [n].
        fast_sums: on a GPU, sum with fewer bits than float32 has.
    """
    # The kernel of a CPU calls a product in float32, which autocast would round. Not so on a GPU.
    with torch.autocast(a.device.type, enabled=False):
        if scale_a.dim() and a.device.type == "cpu" and not CPU_HAS_ROW_SCALES:
            one = scale_a.new_ones(())
            y = torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.float32) * scale_a * scale_b
            return (y if bias is None else y + bias).to(torch.bfloat16)
        return torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=fast_sums
        )


def scaled_bias(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Tensor | None:
    """Return the bias among the arguments of a call of `SCALED_PRODUCT`; breaks as `scaled_product`."""
    return arguments[4] if len(arguments) > 4 else keywords.get("bias")


def as_own_tensor(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return a tensor of another size on the same memory, which autograd does not take for a view.

    A function's result that is a view could not be reduced in place (`gpt2train.parallel.tp_collectives`). Breaks when
    the operator is removed, with an error at once.
    """
    result: Tensor = torch.ops.aten._unsafe_view.default(x, size)
    return result
