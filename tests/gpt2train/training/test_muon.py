"""Muon against torch's own, and against its definition by singular values."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt2train.config import CONFIG_FILE, OptimizerSettings, TrainSettings, read_run_config
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.shape import Shape
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build
from gpt2train.train import train
from gpt2train.training.adamw import AdamW
from gpt2train.training.muon import Muon, is_orthogonalised, newton_schulz, share_out
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import curve, make, weights

SHAPE = Shape(vocab=100, layers=2, heads=2, hidden=16, context=8)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def gradients(model: GPT2, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_singular_values_come_near_one_and_directions_stay(rows: int, columns: int, seed: int) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    found = u.T @ newton_schulz(matrix) @ v.T  # diagonal, if the directions stay
    large = values / values.norm() > 0.02  # five iterations do not lift a smaller one to 0.7
    assert torch.allclose(found, torch.diag(found.diagonal()), atol=1e-9)
    assert ((found.diagonal()[large] > 0.5) & (found.diagonal()[large] < 1.3)).all()


def test_updates_equal_those_of_torch() -> None:
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


def test_a_skipped_step_changes_nothing_whatever_the_gradient_is() -> None:
    model = initialise(GPT2(SHAPE), 1)
    optimizer = Muon(model.named_parameters(), OptimizerSettings(name="muon"))
    optimizer.step(gradients(model, 1), scalar(1e-2), scalar(1.0), scalar(0.0))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = {name: value.clone() for name, value in optimizer.state().items()}
    broken = [gradient.fill_(math.inf) for gradient in gradients(model, 2)]
    optimizer.step(broken, scalar(1e-2), scalar(math.inf), scalar(1.0))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(torch.equal(value, state[name]) for name, value in optimizer.state().items())


@pytest.mark.exhaustive
def test_a_run_learns_and_resumes_bit_for_bit(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    changes = {"optimizer": {"name": "muon", "muon_momentum": 0.9}, "schedule": {"decay_steps": 20}}
    whole = make(tokens, tmp_path / "whole", **changes)
    train(whole, alone)
    assert curve(whole.output)[-1] < curve(whole.output)[0] - 0.3
    parts = [make(tokens, tmp_path / "parts", steps=steps, **changes) for steps in (10, 20)]
    for part in parts:
        train(part, alone)
    assert curve(parts[1].output) == curve(whole.output)
    assert all(torch.equal(tensor, weights(whole.output)[name]) for name, tensor in weights(parts[1].output).items())
    written = read_run_config(Path(whole.output) / CONFIG_FILE)
    assert (written.optimizer.name, written.optimizer.muon_momentum) == ("muon", 0.9)


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
        name: f"muon_cases.updates {parallel!r}".replace(": ", ":").replace(", ", ",")
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
