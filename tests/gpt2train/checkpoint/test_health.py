"""Checkpoints of a diverging training: lost weights are not saved and replace no good checkpoint."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.checkpoint.manager import CheckpointManager
from gpt2train.checkpoint.manifest import read_manifest, verify
from gpt2train.config import RunConfig
from gpt2train.convert.initial_weights import open_initial_weights
from gpt2train.errors import RunError
from gpt2train.launch.rank_process import StopRequest
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import list_checkpoints
from gpt2train.train import train
from gpt2train.training.engine import Engine, PendingStats
from tests.gpt2train.checkpoint.stored_weights import load_weights
from tests.gpt2train.jobs import curve, finish, make, start, weights, with_lr, write

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {
    "checkpoints": {"interval": 3, "keep": 3, "keep_best": 0},
    "validation": {"interval": 1000},
    "schedule": {"kind": "constant", "warmup": 0},
    "spikes": {"max_skipped_steps": 10},
}


def config(tokens: Path, output: Path, steps: int, **changes: Any) -> RunConfig:
    return make(tokens, output, **(SETTINGS | {"steps": steps} | changes))


def checkpoint_steps(run: str | Path) -> list[int]:
    """Steps of the intact checkpoints, after a check that their weights are finite and small."""
    found = list_checkpoints(run)
    for checkpoint in found:
        for name, value in load_weights(checkpoint).items():
            assert value.isfinite().all() and value.abs().max() < 100, f"{name} of {checkpoint}"
    return [verify(checkpoint).position.step for checkpoint in found]


def break_in_step(monkeypatch: pytest.MonkeyPatch, step: int, harm: Any) -> None:
    """Do something to the engine after its update number `step`, counted from here."""
    original, done = Engine.update, [0]

    def update(engine: Engine, measure: PendingStats, lr: float, skip: bool = False) -> None:
        original(engine, measure, lr, skip)
        done[0] += 1
        if done[0] == step:
            harm(engine)

    monkeypatch.setattr(Engine, "update", update)


def test_lost_weights_are_not_saved_and_the_run_resumes(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    healthy = config(tokens, tmp_path / "run", 9)
    train(healthy, alone)
    assert checkpoint_steps(healthy.output) == [3, 6, 9]
    longer = config(tokens, tmp_path / "run", 21)
    with pytest.raises(RunError) as caught:
        train(with_lr(longer, 1e30), alone)
    assert "; ;" not in str(caught.value) and "is not finite" in str(caught.value)
    assert str(tmp_path / "run" / "checkpoints" / "step-00000009") in str(caught.value)
    assert checkpoint_steps(healthy.output) == [3, 6, 9]
    assert train(longer, alone).step == 21  # with a sound learning rate, as the message says
    assert checkpoint_steps(healthy.output) == [15, 18, 21]
    assert curve(healthy.output, "skipped") == [0] * 21 and curve(healthy.output)[20] < curve(healthy.output)[8]


@pytest.mark.slow
def test_finite_weights_that_are_worse_than_guessing_are_not_saved(
    tokens: Path, tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Every step has finite numbers here: nothing is skipped."""
    train(config(tokens, tmp_path / "run", 9), alone)
    logging.getLogger("gpt2train").propagate = True
    broken = with_lr(config(tokens, tmp_path / "run", 15), 30.0).model_copy(update={"steps": 15})
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(RunError, match=r"step 15 is not saved: the loss diverged .* guess"),
    ):
        train(broken, alone)
    losses = curve(tmp_path / "run")
    assert all(loss is not None for loss in losses) and losses[-1] > 2 * 6
    assert checkpoint_steps(tmp_path / "run") == [3, 6, 9]


@pytest.mark.exhaustive
def test_a_stop_saves_finite_weights_or_nothing(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update of the very last step harms: no later step would have shown it."""
    stop = StopRequest()

    def harm(engine: Engine) -> None:
        engine.model_parts[0].wte.weight.data[5] = float("nan")
        stop.requested = True

    break_in_step(monkeypatch, 7, harm)  # the stop is noticed in the next step
    assert train(config(tokens, tmp_path / "run", 800), alone, stop).step == 8
    assert checkpoint_steps(tmp_path / "run") == [3, 6]
    monkeypatch.undo()
    assert train(config(tokens, tmp_path / "run", 8), alone).step == 8
    assert checkpoint_steps(tmp_path / "run") == [3, 6, 8]


@pytest.mark.slow
def test_a_short_diverged_run_ends_with_an_error(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    short = with_lr(config(tokens, tmp_path / "run", 4), float("inf"))
    with pytest.raises(RunError, match=r"step 4 is not saved: the loss is not finite.*no checkpoint"):
        train(short, alone)
    assert checkpoint_steps(short.output) == []


def test_a_step_with_nan_gradients_delays_a_save_and_the_run_continues(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of one step is not a number; the weights are sound. The save of that step comes one later."""
    original = Engine.accumulate

    def accumulate(engine: Engine, batches: Any, tokens: int, step: int, scale: float = 1.0) -> torch.Tensor:
        total = original(engine, batches, tokens, step, scale)
        if step in (4, 12):
            next(engine.model_parts[0].parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]
        return total

    monkeypatch.setattr(Engine, "accumulate", accumulate)
    position = train(config(tokens, tmp_path / "run", 12), alone)
    assert (position.step, position.skipped, position.updates) == (12, 2, 10)
    assert checkpoint_steps(tmp_path / "run") == [6, 9, 12]  # that of 3 was due in step 4, and made in step 5 as 4
    names = [path.name for path in list_checkpoints(tmp_path / "run")]
    assert read_manifest(tmp_path / "run/checkpoints" / names[-1]).position.consecutive_skipped == 0


@pytest.mark.slow
def test_a_non_finite_optimizer_state_is_not_saved(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An infinite second moment freezes its weight for good, and shows in no loss."""

    def harm(engine: Engine) -> None:
        engine.optimizer.state()["blocks.1.ln_1.weight.exp_avg_sq"].fill_(float("inf"))

    break_in_step(monkeypatch, 5, harm)
    logging.getLogger("gpt2train").propagate = True
    with pytest.raises(RunError, match=r"step 8 is not saved: optim\.blocks\.1\.ln_1\.weight\.exp_avg_sq"):
        train(config(tokens, tmp_path / "run", 8), alone)
    assert all(loss < 7 for loss in curve(tmp_path / "run"))
    assert checkpoint_steps(tmp_path / "run") == [3]


@pytest.mark.slow
def test_a_checkpoint_of_lost_weights_is_skipped_for_the_one_before(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as earlier releases have written."""
    run = config(tokens, tmp_path / "run", 6)
    train(run, alone)
    expected = weights(run.output)
    engine = Engine(run, alone)
    with CheckpointManager(run) as checkpoints:
        position = checkpoints.restore(engine.state(), open_initial_weights)
        engine.model_parts[0].wte.weight.data[7] = 1e30
        monkeypatch.setattr("gpt2train.checkpoint.manager.non_finite_tensor", lambda state: None)
        checkpoints.save(engine.state(), position.model_copy(update={"step": 6}))
    monkeypatch.undo()
    logging.getLogger("gpt2train").propagate = True
    with caplog.at_level(logging.INFO):
        train(run, alone)
    assert "step-00000006" in caplog.text and "resuming from step 3" in caplog.text
    assert all(torch.equal(value, expected[name]) for name, value in weights(run.output).items())


def test_non_finite_initial_weights_are_refused(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    run = config(tokens, tmp_path / "run", 3)
    engine = Engine(run, alone)
    engine.model_parts[0].wte.weight.data[7] = float("nan")
    with CheckpointManager(run) as checkpoints, pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt2train.checkpoint.manager.non_finite_tensor", lambda state: None)
        position = checkpoints.restore(Engine(run, alone).state(), open_initial_weights)
        checkpoints.save(engine.state(), position.model_copy(update={"step": 3}))
    other = config(tokens, tmp_path / "other", 3, checkpoints={"init_from": run.output, "restore": "weights"})
    with pytest.raises(RunError, match=r"model\.wte\.weight .*; give another checkpoints\.init_from"):
        train(other, alone)


@pytest.mark.exhaustive
def test_all_ranks_agree_to_save_nothing_on_every_layout(tokens: Path, tmp_path: Path) -> None:
    """Two ranks: an exploding rate, and a weight, a moment and a gradient that are lost on the second one alone."""
    layouts: dict[str, dict[str, Any]] = {"zero-0": {}, "zero-3": {"zero": 3}, "tp": {"tp": 2}, "pp": {"pp": 2}}
    layouts["zero-1-offload"] = {"zero": 1, "cpu_offload": True}
    runs = [
        write(config(tokens, tmp_path / f"{name}-{how}", 9, parallel=layout))
        for name, layout in layouts.items()
        for how in ("lr", "weight", "moment")
    ]
    code, out, err = finish(start(str(HERE / "diverging_runs.py"), *runs), 280)
    assert code == 0, err + out
    for run in runs:
        assert checkpoint_steps(Path(run).with_suffix("")) == [3, 6, 9], run
        assert f"{Path(run).with_suffix('').name}: not saved" in out
