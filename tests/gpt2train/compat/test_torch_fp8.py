"""Private products of 8-bit matrices of torch against the product in float32."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpt2train.compat import torch_fp8
from gpt2train.compat.torch_fp8 import SCALED_PRODUCT, as_own_tensor, scaled_bias, scaled_product

GENERATOR = torch.Generator().manual_seed(1)
A = torch.randn(32, 64, generator=GENERATOR)
B = torch.randn(48, 64, generator=GENERATOR)
BIAS = torch.randn(48, generator=GENERATOR).bfloat16()
SCALES = {"tensor": (torch.tensor(0.5), torch.tensor(3.0)), "rows": (torch.rand(32, 1) + 0.1, torch.rand(1, 48) + 0.1)}


class Calls(TorchDispatchMode):
    """Arguments of the products."""

    def __init__(self) -> None:
        super().__init__()
        self.biases: list[Tensor | None] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is SCALED_PRODUCT:
            self.biases.append(scaled_bias(args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("scales", SCALES)
def test_products_are_those_in_float32(
    monkeypatch: pytest.MonkeyPatch, scales: str, bias: Tensor | None, dtype: torch.dtype, native: bool
) -> None:
    if native and not torch_fp8.CPU_HAS_ROW_SCALES:
        pytest.skip("this torch has no row-wise scales on a CPU")
    monkeypatch.setattr(torch_fp8, "CPU_HAS_ROW_SCALES", native)
    a, b = A.to(dtype), B.to(torch.float8_e4m3fn).t()
    one, other = SCALES[scales]
    expected = (a.float() * one) @ (b.float() * other) + (0 if bias is None else bias.float())
    for autocast in (False, True):  # which must not round the sums
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = scaled_product(a, one, b, other, bias, fast_sums=True)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), expected, rtol=2.0**-8, atol=1e-5)


@pytest.mark.parametrize("bias", [None, BIAS])
def test_a_policy_sees_the_product_and_its_bias(bias: Tensor | None) -> None:
    with Calls() as calls:
        scaled_product(A.to(torch.float8_e4m3fn), *SCALES["tensor"][:1], B.to(torch.float8_e4m3fn).t(),
                       SCALES["tensor"][1], bias, fast_sums=False)  # fmt: skip
    assert len(calls.biases) == 1 and (calls.biases[0] is None) == (bias is None)


def test_an_own_tensor_can_be_changed_in_place_by_a_function() -> None:
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, own):  # type: ignore[no-untyped-def]
            y = x * 2
            return as_own_tensor(y, (2, 8)) if own else y.view(2, 8)

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad.reshape(16) * 2, None

    x = torch.ones(16, requires_grad=True)
    y = Made.apply(x, True)
    y.mul_(3)
    y.sum().backward()
    assert x.grad is not None and (x.grad == 6).all()
    with pytest.raises(RuntimeError, match="view"):
        Made.apply(x, False).mul_(3)
