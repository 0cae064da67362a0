"""The RMSNorm of a CPU against that of torch."""

import pytest
import torch
import torch.nn.functional as F

from gpt2train.model.rms_norm import rms_norm


@pytest.mark.parametrize("size", [(16,), (3, 5, 16), (2, 3, 4, 8)])
@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_values_and_gradients_are_those_of_torch(size: tuple[int, ...], eps: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, generator=generator).transpose(0, -2 if len(size) > 1 else 0).requires_grad_()
    weight = torch.randn(size[-1:], generator=generator).requires_grad_()
    results = []
    for function in (lambda: rms_norm(x, weight, eps), lambda: F.rms_norm(x, weight.shape, weight, eps)):
        y = function()
        grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
        results.append((y.detach(), *torch.autograd.grad(y, (x, weight), grad)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_half_precision_is_left_to_torch() -> None:
    x, weight = torch.randn(4, 16, dtype=torch.bfloat16), torch.ones(16, dtype=torch.bfloat16)
    assert torch.equal(rms_norm(x, weight, 1e-5), F.rms_norm(x, (16,), weight, 1e-5))
