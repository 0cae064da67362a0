"""The loss in chunks against the plain one, and the initial weights."""

import pytest
import torch

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initial_value, initialise
from gpt2train.model.loss import IGNORE, chunked_cross_entropy
from gpt2train.model.shape import Shape
from tests.gpt2train.models import lively, plain_cross_entropy

SHAPE = Shape(vocab=128, layers=3, heads=4, hidden=32, context=24)


@pytest.mark.parametrize("terms", [{}, {"softcap": 2.0}, {"z_loss": 0.01}, {"softcap": 3.0, "z_loss": 0.1}])
@pytest.mark.parametrize(("rows", "vocab"), [(1, None), (255, None), (256, 61), (700, 64)])
def test_chunked_loss_equals_the_plain_one(rows: int, vocab: int | None, terms: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 16, generator=generator)
    weight = torch.randn(64, 16, generator=generator)
    targets = torch.randint(0, vocab or 64, (rows,), generator=generator)
    targets[:: 3 if rows > 1 else 2] = IGNORE if rows > 1 else 3
    results = []
    for function in (chunked_cross_entropy, plain_cross_entropy):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = function(h, w, targets, vocab, **terms)
        (loss * 0.5).sum().backward()
        results.append((loss, h.grad, w.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        again = chunked_cross_entropy(hidden, weight, targets, vocab, **terms)
        torch.testing.assert_close(again, results[0][0].detach())


def test_chunked_loss_refuses_a_second_backward() -> None:
    hidden, weight = torch.randn(5, 16, requires_grad=True), torch.randn(64, 16, requires_grad=True)
    loss = chunked_cross_entropy(hidden, weight, torch.arange(5)) * 0.5
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_chunked_loss_under_autocast_is_close_to_fp32() -> None:
    model = lively(SHAPE, noise=0.1).requires_grad_()
    tokens = torch.randint(0, SHAPE.vocab, (2, SHAPE.context), generator=torch.Generator().manual_seed(2))
    exact = model(tokens, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(tokens, tokens)
    rough.backward()
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    assert model.wte.weight.grad is not None and model.wte.weight.grad.dtype == torch.float32


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    model = initialise(GPT2(SHAPE), 7)
    for name, parameter in reversed(list(model.named_parameters())):
        assert torch.equal(parameter, initial_value(name, tuple(parameter.shape), SHAPE, 7))
    deeper = initialise(GPT2(Shape(vocab=128, layers=5, heads=4, hidden=32, context=24)), 7)
    assert torch.equal(model.blocks["1"].up.weight, deeper.blocks["1"].up.weight)
    assert not torch.equal(model.wpe.weight, initialise(GPT2(SHAPE), 8).wpe.weight)
    assert model.wte.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks["0"].down.weight.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.05)
