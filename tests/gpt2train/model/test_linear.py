"""Products in 8 bits against a plain twin: factors rounded by the definition of the formats, multiplied in float32."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.linear import GRADIENT, INPUT, Linear, use_fp8
from gpt2train.model.shape import Shape

RECIPES = ("tensorwise", "rowwise")
SHAPE = Shape(vocab=128, layers=2, heads=2, hidden=32, context=16)
FORMATS = {torch.float8_e4m3fn: (3, -6, 448.0), torch.float8_e5m2: (2, -14, 57344.0)}  # mantissa, least exponent, most


def rounded(x: Tensor, dtype: torch.dtype, dim: int | None) -> Tensor:
    """A factor as the product sees it: divided by its scale, rounded to the bits of the format, and scaled back."""
    mantissa, least, most = FORMATS[dtype]
    largest = x.abs().max() if dim is None else x.abs().max(dim, keepdim=True).values
    scale = largest.clamp(min=2.0**-80) / most
    value = x / scale
    exponent = torch.frexp(value).exponent.sub(1).clamp(min=least)  # value = m * 2^exponent with m in [1, 2)
    step = torch.ldexp(torch.ones_like(value), exponent - mantissa)
    return torch.round(value / step) * step * scale


def layer(outer: int, inner: int, fp8: str, seed: int = 0) -> Linear:
    made = Linear(inner, outer)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    made.fp8 = fp8
    return made


def close(ours: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding to bfloat16 (half of 2^-7) and the order of sums in float32."""
    largest = expected.abs().max().item()
    torch.testing.assert_close(ours.float(), expected, rtol=2.0**-8, atol=1e-5 * largest)


@settings(max_examples=30, deadline=None)
@given(
    fp8=st.sampled_from(RECIPES),
    sizes=st.tuples(*[st.sampled_from([16, 32, 48])] * 3),
    exponents=st.tuples(*[st.integers(-12, 8)] * 2),
    spread=st.floats(0, 4),
    zeros=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_all_three_products_are_those_of_rounded_factors(
    fp8: str, sizes: tuple[int, int, int], exponents: tuple[int, int], spread: float, zeros: bool, seed: int
) -> None:
    tokens, inner, outer = sizes
    generator = torch.Generator().manual_seed(seed)

    def numbers(width: int, exponent: int) -> Tensor:
        made = torch.randn(2, tokens // 2, width, generator=generator)
        # Rows of different sizes, as gradients of tokens have.
        return made * 10.0 ** (exponent + spread * torch.randn(2, tokens // 2, 1, generator=generator))

    x, grad = numbers(inner, exponents[0]), numbers(outer, exponents[1]).bfloat16()
    if zeros:
        x[0], grad[:, :, 0] = 0, 0
    ours = layer(outer, inner, fp8, seed)
    x.requires_grad_()
    y = ours(x)
    y.backward(grad)
    assert y.dtype == torch.bfloat16 and x.grad is not None and ours.weight.grad is not None

    by_row = fp8 == "rowwise"
    over_inner, over_outer, over_tokens = (1, 1, 0) if by_row else (None, None, None)
    over_rows = 0 if by_row else None  # of the weight, in the gradient of the input
    rows, weight = x.detach().bfloat16().float().flatten(0, 1), ours.weight.detach().bfloat16().float()
    g = grad.float().flatten(0, 1)
    bias = ours.bias.detach().bfloat16().float()
    close(y.detach().flatten(0, 1), rounded(rows, INPUT, over_inner) @ rounded(weight, INPUT, over_inner).t() + bias)
    close(x.grad.flatten(0, 1), rounded(g, GRADIENT[fp8], over_outer) @ rounded(weight, INPUT, over_rows))
    close(ours.weight.grad, rounded(g, GRADIENT[fp8], over_tokens).t() @ rounded(rows, INPUT, over_tokens))
    torch.testing.assert_close(ours.bias.grad, grad.flatten(0, 1).sum(0).float())
    assert all(gradient.isfinite().all() for gradient in (y, x.grad, ours.weight.grad))


@pytest.mark.parametrize("fp8", RECIPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_number_reaches_the_results_that_depend_on_it(fp8: str, bad: float) -> None:
    ours, x, grad = layer(32, 16, fp8), torch.randn(32, 16, requires_grad=True), torch.ones(32, 32).bfloat16()
    y = ours(x)
    grad[3, 5] = bad
    y.backward(grad)
    assert x.grad is not None and ours.weight.grad is not None and ours.bias.grad is not None
    assert not x.grad[3].isfinite().any() and not ours.weight.grad[5].isfinite().any()
    assert not ours.bias.grad[5].isfinite()
    if fp8 == "rowwise":  # the other rows have scales of their own
        assert x.grad[:3].isfinite().all() and ours.weight.grad[:5].isfinite().all()
    with torch.no_grad():
        x[2, 1] = bad
    assert not ours(x)[2].isfinite().any()


@pytest.mark.parametrize("fp8", RECIPES)
def test_without_gradients_nothing_is_rounded_to_8_bits(fp8: str) -> None:
    ours, x = layer(32, 16, fp8), torch.randn(2, 16, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            assert torch.equal(ours(x), nn.functional.linear(x, ours.weight, ours.bias))
        assert not torch.equal(ours(x), nn.functional.linear(x, ours.weight, ours.bias))


def test_only_the_linear_layers_of_the_blocks_multiply_in_8_bits() -> None:
    model = initialise(GPT2(SHAPE), 1)
    use_fp8(model.blocks, "off")
    assert not any(isinstance(module, Linear) for module in model.modules())
    names = list(model.state_dict())
    use_fp8(model.blocks, "rowwise")
    chosen = {name for name, module in model.named_modules() if isinstance(module, Linear) and module.fp8 == "rowwise"}
    assert chosen == {f"blocks.{i}.{name}" for i in (0, 1) for name in ("attn.qkv", "attn.proj", "up", "down")}
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("fp8", [RECIPES[0], pytest.param(RECIPES[1], marks=pytest.mark.slow)])
def test_a_compiled_model_has_the_gradients_of_the_plain_one(fp8: str) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    tokens = torch.randint(SHAPE.vocab, (2, SHAPE.context + 1), generator=torch.Generator().manual_seed(0))
    models = [initialise(GPT2(SHAPE), 1) for _ in range(2)]
    losses = []
    for model, compiled in zip(models, (False, True), strict=True):
        use_fp8(model.blocks, fp8)
        if compiled:
            for block in model.blocks.values():
                block.forward = torch.compile(block.forward, backend="eager", dynamic=False)
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(model(tokens[:, :-1], tokens[:, 1:]))
        (losses[-1] / 32).backward()
    assert torch.equal(*losses)
    for (name, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and one.grad.norm() > 0
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7, msg=name)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1  # all blocks share one
