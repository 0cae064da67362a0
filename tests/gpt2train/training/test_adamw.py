"""AdamW against torch's own on whole tensors: groups, clipping, unscaling, skipping, and no leak."""

import gc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpt2train.config import OptimizerSettings
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.shape import Shape
from gpt2train.parallel.grad_norm import norm_weights, norms, squared_norm
from gpt2train.training.adamw import AdamW, is_decayed

SHAPE = Shape(vocab=100, layers=2, heads=2, hidden=16, context=8)


def gradients(model: nn.Module, step: int, factor: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator) * factor for p in model.parameters()]


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


@pytest.mark.parametrize("decay_embeddings", [True, False])
def test_updates_equal_those_of_torch(decay_embeddings: bool) -> None:
    ours, theirs = (initialise(GPT2(SHAPE), 1) for _ in range(2))
    settings = OptimizerSettings(weight_decay=0.3, decay_embeddings=decay_embeddings)
    mine = AdamW(ours.named_parameters(), settings)
    plain = {"betas": (settings.beta1, settings.beta2), "eps": settings.eps, "foreach": False}
    kept = ("bias", "ln_1.weight", "ln_2.weight", "ln_f.weight") + (
        () if decay_embeddings else ("wte.weight", "wpe.weight")
    )
    named = dict(theirs.named_parameters())
    reference = torch.optim.AdamW(
        [
            {"params": [p for n, p in named.items() if not n.endswith(kept)], "weight_decay": 0.3},
            {"params": [p for n, p in named.items() if n.endswith(kept)], "weight_decay": 0.0},
        ],
        **plain,  # type: ignore[arg-type]
    )
    for step, rate in enumerate([1e-2, 5e-3, 2e-3]):
        for parameter, gradient in zip(theirs.parameters(), gradients(theirs, step), strict=True):
            parameter.grad = gradient
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        mine.step(gradients(ours, step), scalar(rate), scalar(1.0), scalar(0.0))
    for (name, ours_), theirs_ in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-5, atol=1e-7, msg=name)
        state = reference.state[theirs_]
        for key in ("exp_avg", "exp_avg_sq", "step"):
            torch.testing.assert_close(mine.state()[f"{name}.{key}"], state[key], rtol=1e-5, atol=1e-7)


def test_weight_decay_applies_to_matrices_only() -> None:
    names = dict(GPT2(SHAPE).named_parameters())
    decayed = {name for name, p in names.items() if is_decayed(name, p, OptimizerSettings())}
    assert decayed == {name for name in names if name.endswith("weight") and "ln_" not in name}
    without = {name for name, p in names.items() if is_decayed(name, p, OptimizerSettings(decay_embeddings=False))}
    assert decayed - without == {"wte.weight", "wpe.weight"}
    tables = ("encoder_bias.weight", "decoder_bias.weight")
    assert not any(is_decayed(name, torch.zeros(32, 8), OptimizerSettings()) for name in tables)


@given(st.sampled_from([0.1, 1.0, 1e3]), st.sampled_from([1.0, 65536.0]))
def test_the_kernel_clips_and_unscales_by_its_divisor(limit: float, scale: float) -> None:
    ours, theirs = (initialise(GPT2(SHAPE), 1) for _ in range(2))
    mine = AdamW(ours.named_parameters(), OptimizerSettings())
    reference = AdamW(theirs.named_parameters(), OptimizerSettings())
    for parameter, gradient in zip(theirs.parameters(), gradients(theirs, 0), strict=True):
        parameter.grad = gradient
    norm = nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    reference.step([p.grad for p in theirs.parameters()], scalar(1e-2), scalar(1.0), scalar(0.0))  # type: ignore[misc]
    scaled = gradients(ours, 0, scale)
    square = squared_norm(norms(scaled), norm_weights(list(ours.parameters()), 1))
    torch.testing.assert_close(square.sqrt() / scale, norm.double(), rtol=1e-6, atol=0)
    mine.step(scaled, scalar(1e-2), ((norm + 1e-6) / limit).clamp(min=1) * scale, scalar(0.0))
    for name, value in mine.state().items():
        torch.testing.assert_close(value, reference.state()[name], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_skipped_step_changes_nothing(bad: float) -> None:
    model = initialise(GPT2(SHAPE), 1)
    optimizer = AdamW(model.named_parameters(), OptimizerSettings())
    optimizer.step(gradients(model, 0), scalar(1e-2), scalar(1.0), scalar(0.0))
    before = {name: value.clone() for name, value in [*optimizer.state().items(), *model.named_parameters()]}
    optimizer.step(gradients(model, 1, bad), scalar(1e-2), scalar(bad), scalar(1.0))
    for name, value in [*optimizer.state().items(), *model.named_parameters()]:
        assert torch.equal(value, before[name]), name


@pytest.mark.slow
def test_steps_do_not_leak_memory() -> None:
    model = initialise(GPT2(SHAPE), 1)
    optimizer = AdamW(model.named_parameters(), OptimizerSettings())
    mine = gradients(model, 0)

    def objects_after(steps: int) -> int:
        for _ in range(steps):
            optimizer.step(mine, scalar(1e-6), scalar(1.0), scalar(0.0))
        gc.collect()
        return len(gc.get_objects())

    first = objects_after(5)
    assert objects_after(200) - first < 50  # one for each parameter and step would be 5,600


def test_the_norm_of_a_large_tensor_is_exact() -> None:
    """Summed in a few float32 accumulators, a norm of 4 million equal numbers is wrong by 1e-4 and more on a CPU."""
    tensor = torch.full((4096, 1024), 0.3)
    exact = (tensor.double().square().sum()).sqrt().item()
    assert norms([tensor]).item() == pytest.approx(exact, rel=1e-6)
    assert norms([tensor[0]]).item() == pytest.approx(0.3 * 32, rel=1e-6)


@pytest.mark.parametrize("kind", [torch.inf, torch.nan])
def test_a_non_finite_element_is_found_also_in_an_uncounted_copy(kind: Any) -> None:
    tensors = [torch.ones(3, 4), torch.ones(5)]
    tensors[1][2] = kind
    for copies in ([], [tensors[1]]):
        assert not squared_norm(norms(tensors), norm_weights(tensors, 1, copies)).isfinite()
    assert squared_norm(
        norms([torch.ones(3, 4), torch.ones(5)]), norm_weights(tensors, 1, [tensors[1]])
    ).item() == pytest.approx(12)
