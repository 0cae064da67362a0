"""Gradients of compiled functions that have a gradient of their own; torch 2.11 gave zeros for some of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpt2train.model.loss import CHUNK, IGNORE, chunked_cross_entropy
from gpt2train.model.rotary import rotate, rotation

GENERATOR = torch.Generator().manual_seed(1)
HIDDEN, WEIGHT = torch.randn(40, 16, generator=GENERATOR), torch.randn(64, 16, generator=GENERATOR)
TARGETS = torch.arange(40)
TARGETS[::7] = IGNORE
HEADS = torch.randn(2, 8, 3, 16, generator=GENERATOR)


def loss(hidden: Tensor, weight: Tensor) -> Tensor:
    return chunked_cross_entropy(hidden, weight, TARGETS, 60)


def both_terms(hidden: Tensor, weight: Tensor) -> Tensor:
    return chunked_cross_entropy(hidden, weight, TARGETS, 60, softcap=5.0, z_loss=1e-3).sum()


def in_half_precision(hidden: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return chunked_cross_entropy(hidden, weight, TARGETS, 60)


def rotated(x: Tensor, weight: Tensor) -> Tensor:
    by = rotation(torch.arange(8), 1.0 / 10_000 ** (torch.arange(0, 16, 2) / 16), 1.0, torch.float32)
    return (rotate(x @ weight.t()[:, :16], by) ** 3).sum()


@pytest.mark.parametrize("function", [loss, both_terms, in_half_precision, rotated])
def test_a_compiled_function_has_the_gradients_of_the_plain_one(
    function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHUNK, "cpu", 16)
    torch._dynamo.reset()
    found = []
    for form in (function, torch.compile(function, backend="eager")):
        first = (HEADS if function is rotated else HIDDEN).clone().requires_grad_()
        weight = WEIGHT.clone().requires_grad_()
        (form(first, weight if function is not rotated else weight[:16]) / 512).backward()
        found.append((first.grad, weight.grad))
    for plain, compiled in zip(*found, strict=True):
        assert plain is not None and plain.norm() > 1e-4
        torch.testing.assert_close(compiled, plain)
