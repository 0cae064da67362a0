"""Optimizers against torch's own on whole tensors: AdamW, and Muon also by its definition and on layouts."""

import gc
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpt2train.config import OptimizerSettings, TrainSettings
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.shape import Shape
from gpt2train.parallel.grad_norm import norm_weights, norms, squared_norm
from gpt2train.settings import build
from gpt2train.training.adamw import AdamW, is_decayed
from gpt2train.training.muon import Muon, is_orthogonalised, newton_schulz, share_out
from tests.gpt2train.forked_ranks import run_ranks

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


def test_weight_decay_spares_the_tables_of_position_biases() -> None:
    tables = ("encoder_bias.weight", "decoder_bias.weight")
    assert not any(is_decayed(name, torch.zeros(32, 8), OptimizerSettings()) for name in tables)


def test_the_norm_of_a_large_tensor_is_exact() -> None:
    """Summed in a few float32 accumulators, a norm of 4 million equal numbers is wrong by 1e-4 and more on a CPU."""
    tensor = torch.full((4096, 1024), 0.3)
    exact = (tensor.double().square().sum()).sqrt().item()
    assert norms([tensor]).item() == pytest.approx(exact, rel=1e-6)
    assert norms([tensor[0]]).item() == pytest.approx(0.3 * 32, rel=1e-6)


@pytest.mark.parametrize(("kind", "expected"), [(torch.inf, False), (torch.nan, False), (1.0, True)])
def test_a_non_finite_element_is_found_also_in_an_uncounted_copy(kind: float, expected: bool) -> None:
    tensors = [torch.ones(3, 4), torch.tensor([1, 1, kind, 1, 1])]
    for copies, size in (([], 17), ([tensors[1]], 12)):
        square = squared_norm(norms(tensors), norm_weights(tensors, 1, copies))
        assert square.isfinite() == expected and (square.item() == pytest.approx(size) or not expected)


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_singular_values_come_near_one_and_directions_stay(rows: int, columns: int, seed: int) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    found = u.T @ newton_schulz(matrix) @ v.T  # diagonal, if the directions stay
    large = values / values.norm() > 0.02  # five iterations do not lift a smaller one to 0.7
    assert torch.allclose(found, torch.diag(found.diagonal()), atol=1e-9)
    assert ((found.diagonal()[large] > 0.5) & (found.diagonal()[large] < 1.3)).all()


def test_updates_equal_those_of_torch_muon() -> None:
    ours, theirs = (initialise(GPT2(SHAPE), 1) for _ in range(2))
    settings = OptimizerSettings(name="muon", weight_decay=0.1)
    mine = Muon(ours.named_parameters(), settings)
    matrices = [p for n, p in theirs.named_parameters() if is_orthogonalised(n, p)]
    assert len(matrices) == 8
    # torch iterates in bfloat16, so that its directions are right to three digits.
    reference = torch.optim.Muon(matrices, lr=1.0, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    others = [pair for pair in theirs.named_parameters() if not is_orthogonalised(*pair)]
    adamw = AdamW(others, settings)
    for step, rate in enumerate([1e-2, 5e-3, 2e-3]):
        given = dict(zip((name for name, _ in theirs.named_parameters()), gradients(theirs, step), strict=True))
        for name, parameter in theirs.named_parameters():
            parameter.grad = given[name] / 2
        reference.param_groups[0]["lr"] = rate
        reference.step()
        adamw.step([given[name] for name, _ in others], scalar(rate), scalar(2.0), scalar(0.0))
        mine.step(gradients(ours, step), scalar(rate), scalar(2.0), scalar(0.0))
    start = dict(initialise(GPT2(SHAPE), 1).named_parameters())
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if is_orthogonalised(name, found):
            gap, size = (found - expected).norm(), (expected - start[name]).norm()
            assert gap < 0.02 * size, name
            assert torch.allclose(mine.state()[f"{name}.momentum"], reference.state[expected]["momentum_buffer"])
        else:
            assert torch.equal(found, expected), name


@pytest.mark.parametrize("optimizer", [AdamW, Muon])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_skipped_step_changes_nothing_whatever_the_gradient_is(optimizer: type[AdamW | Muon], bad: float) -> None:
    model = initialise(GPT2(SHAPE), 1)
    made = optimizer(model.named_parameters(), OptimizerSettings())
    made.step(gradients(model, 1), scalar(1e-2), scalar(1.0), scalar(0.0))
    before = {name: value.clone() for name, value in [*made.state().items(), *model.named_parameters()]}
    broken = [gradient.fill_(bad) for gradient in gradients(model, 2)]
    made.step(broken, scalar(1e-2), scalar(bad), scalar(1.0))
    for name, value in [*made.state().items(), *model.named_parameters()]:
        assert torch.equal(value, before[name]), name


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=30), st.integers(1, 8))
def test_matrices_are_shared_out_evenly(sizes: list[tuple[int, int]], processes: int) -> None:
    owners = share_out(sizes, processes)
    costs = [rows * columns * min(rows, columns) for rows, columns in sizes]
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == p) for p in range(processes)]
    assert sum(loads) == sum(costs) and len(owners) == len(sizes)
    assert max(loads) - min(loads) <= max(costs, default=0)


RANKS = Path(__file__).parents[1] / "parallel/run_cases.py"
# Layout -> shares of a process's matrices that it gathers, and that are sent around, in an update.
LAYOUTS: dict[int, dict[str, tuple[dict[str, Any], float, float]]] = {
    2: {"dp": ({"zero": 0}, 0, 1), "zero 3": ({"zero": 3}, 1, 0)},
    4: {
        "dp 4": ({"zero": 0}, 0, 1),
        "hybrid": ({"zero": 3, "dp_shard_degree": 2}, 0.5, 0.5),
        "tp x dp": ({"zero": 0, "tp": 2}, 0.5, 0.5),
        "tp x zero 1": ({"zero": 1, "tp": 2}, 1, 0),
        "tp x zero 2": ({"zero": 2, "tp": 2, "sequence_parallel": False}, 1, 0),
        "tp x zero 3": ({"zero": 3, "tp": 2}, 1, 0),
        "pp x dp": ({"zero": 0, "pp": 2}, 0, 1),
    },
    6: {"rows that do not divide": ({"zero": 3, "tp": 2}, 65 / 64, 0)},  # with the padding
    8: {
        "tp x hybrid": ({"zero": 3, "dp_shard_degree": 2, "tp": 2}, 0.5, 0.25),
        "tp x zero 3": ({"zero": 3, "tp": 2}, 1, 0),
        "tp 4 x zero 1": ({"zero": 1, "tp": 4}, 1, 0),
        "tp x pp x zero 2": ({"zero": 2, "tp": 2, "pp": 2}, 1, 0),
    },
}
MANY = [pytest.param(n, marks=pytest.mark.exhaustive) for n in (4, 6, 8)]


@pytest.mark.parametrize("processes", [2, *MANY])
def test_layouts_have_the_updates_of_one_process_and_send_each_matrix_once(processes: int, tmp_path: Path) -> None:
    cases = {
        name: f"norm_cases.updates {parallel!r}".replace(": ", ":").replace(", ", ",")
        for name, (parallel, _, _) in LAYOUTS[processes].items()
    }
    run_ranks(RANKS, str(tmp_path / "found.json"), *cases.values(), processes=processes)
    found = json.loads((tmp_path / "found.json").read_text())
    for name, case in cases.items():
        _, gathered, sent = LAYOUTS[processes][name]
        for rank in found[case]:
            assert rank["different"] == [] and rank["compared"] == (8 if "pp" in name else 16), name
            volume = {"all-gather float32": gathered, "broadcast float32": sent}
            assert rank["bytes"] == {key: share * rank["matrices"] for key, share in volume.items() if share}, name


def test_settings_that_do_not_fit_are_refused() -> None:
    offload = {"cpu_offload": True, "offload_placement": "optimizer"}
    with pytest.raises(UserError, match=r"optimizer.name muon has no offload of its own .*; set offload_placement"):
        build(TrainSettings, {"optimizer": {"name": "muon"}, "parallel": offload})
    assert "name" not in OptimizerSettings().model_dump() and "muon_momentum" not in OptimizerSettings().model_dump()
