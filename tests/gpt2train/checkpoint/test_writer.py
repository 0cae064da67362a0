"""Saves in the background, of a frozen state; trainings killed at any instant of one; weights that are not saved."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from gpt2train.checkpoint import manager, writer
from gpt2train.checkpoint.manager import CheckpointManager
from gpt2train.checkpoint.manifest import CheckpointManifest, read_manifest, verify
from gpt2train.checkpoint.store import SafeReader
from gpt2train.config import RunConfig
from gpt2train.convert.initial_weights import open_initial_weights
from gpt2train.errors import RunError
from gpt2train.launch.rank_process import StopRequest
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.run_logger import RunLogger
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from gpt2train.train import train
from gpt2train.training.engine import Engine, PendingStats
from tests.gpt2train.checkpoint.file_limit import file_limit
from tests.gpt2train.jobs import curve, finish, load_weights, make, start, wait_until, weights, with_lr, write


def everything(checkpoint: Path) -> dict[str, Tensor]:
    stored = SafeReader(checkpoint).read_metadata().state_dict_metadata
    state = {name: torch.empty(entry.size) for name, entry in stored.items()}
    dcp.load(state, storage_reader=SafeReader(checkpoint))
    return state


def delay(monkeypatch: pytest.MonkeyPatch, before: Callable[[CheckpointManifest], object]) -> None:
    original = manager.write

    def delayed(run: str, state: Mapping[str, Tensor], manifest: CheckpointManifest, *rest: Any) -> Path:
        before(manifest)
        return original(run, state, manifest, *rest)

    monkeypatch.setattr(manager, "write", delayed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("zero", [0, 3])
def test_the_state_of_the_step_is_saved_while_training_goes_on(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch, zero: int
) -> None:
    def config(name: str, async_save: bool) -> RunConfig:
        checkpoints = {"interval": 3, "keep": 9, "async_save": async_save}
        return make(tokens, tmp_path / name, steps=12, checkpoints=checkpoints, parallel={"zero": zero})

    at_once, later = config("at-once", False), config("later", True)
    train(at_once, alone)

    def two_steps_later(manifest: CheckpointManifest) -> None:
        goal = min(manifest.position.step + 2, 12)
        wait_until(lambda: read_metrics(later.output)[-1]["step"] >= goal)

    delay(monkeypatch, two_steps_later)
    train(later, alone)
    assert curve(later.output) == curve(at_once.output)
    for ours, theirs in zip(list_checkpoints(later.output), list_checkpoints(at_once.output), strict=True):
        a, b = everything(ours), everything(theirs)
        assert len(a) == 4 * len(load_weights(theirs))  # weight, step, exp_avg, exp_avg_sq
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert read_manifest(ours).position == read_manifest(theirs).position


def test_a_save_is_timed(tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make(tokens, tmp_path / "run", steps=6, checkpoints={"interval": 2, "keep": 9})
    delay(monkeypatch, lambda manifest: time.sleep(0.2))
    train(config, alone)
    rows = {row["step"]: row for row in read_metrics(config.output)}
    assert [step for step, row in rows.items() if "save_stall_seconds" in row] == [3, 5]
    written = [row["save_seconds"] for row in rows.values() if "save_seconds" in row]
    assert written and min(written) >= 0.2


@pytest.mark.parametrize(("error", "saved"), [(ValueError, 4), (RunError, 4), (KeyboardInterrupt, 2)])
def test_an_error_of_the_training_waits_for_the_save_under_way(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch, error: type, saved: int
) -> None:
    config = make(tokens, tmp_path / "run", steps=8, checkpoints={"interval": 2, "keep": 9})
    failing, checked = threading.Event(), threading.Event()

    def until_the_error(manifest: CheckpointManifest) -> None:
        if manifest.position.step == 4:
            failing.wait()
            checked.wait(60 if saved == 2 else 0.3)  # the save is under way when the training ends without it

    def fail(logger: RunLogger, row: dict[str, Any], *rest: Any) -> None:
        if row["step"] == 5:
            failing.set()
            raise error("stop")

    delay(monkeypatch, until_the_error)
    monkeypatch.setattr(RunLogger, "write", fail)
    with pytest.raises(error):
        train(config, alone)
    assert newest_checkpoint(config.output).name == f"step-0000000{saved}"
    checked.set()
    wait_until(lambda: newest_checkpoint(config.output).name == "step-00000004")  # its thread, in the same process


def test_a_failed_save_is_reported_at_the_next_step(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make(tokens, tmp_path / "run", steps=4), alone)
    config = make(tokens, tmp_path / "run", steps=100, checkpoints={"interval": 10}, validation={"interval": 1000})
    original = manager.CheckpointManager.save

    def until_it_failed(checkpoints: manager.CheckpointManager, *arguments: Any) -> None:
        original(checkpoints, *arguments)
        wait_until(lambda: checkpoints.failed)

    monkeypatch.setattr(manager.CheckpointManager, "save", until_it_failed)
    message = r"size limit .*step-00000010.*earlier checkpoints are intact"
    with file_limit(100 * 2**10), pytest.raises(RunError, match=message):  # the tensors are larger, the metrics not
        train(config, alone)
    assert read_metrics(config.output)[-1]["step"] == 12  # written during 11; the next save would be at 20
    assert verify(newest_checkpoint(config.output)).position.step == 4
    assert not list((tmp_path / "run" / "checkpoints").glob("*.tmp"))


def test_a_save_names_the_folder_that_was_removed(tmp_path: Path) -> None:
    missing = FileNotFoundError(2, "No such file")
    error = writer._save_error(tmp_path / "run/checkpoints/step-00000010.tmp", missing)
    assert f"the folder {tmp_path / 'run'} was removed; put it back, or run again" in str(error)


def test_a_stop_waits_for_the_running_save_and_saves_again(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(tokens, tmp_path / "run", steps=10_000, checkpoints={"interval": 4, "keep": 9})
    stop = StopRequest()

    def asked_in_the_first_save(manifest: CheckpointManifest) -> None:
        if manifest.position.step == 4:
            stop.requested = True
            wait_until(lambda: read_metrics(config.output)[-1]["step"] >= 5)

    delay(monkeypatch, asked_in_the_first_save)
    position = train(config, alone, stop)
    assert position.step >= 5
    saved = list_checkpoints(config.output)
    assert [verify(path).position.step for path in saved] == [4, position.step]


HERE = Path(__file__).parent
# Dropout, two micro-batches on each of two processes, ZeRO 1: all that a step depends on.
CHANGES = {"model": {"dropout": 0.1}, "parallel": {"zero": 1}, "validation": {"interval": 20}}


def run(tokens: Path, output: Path, steps: int, every: int) -> RunConfig:
    return make(tokens, output, steps=steps, checkpoints={"interval": every, "keep": 2}, **CHANGES)


def killed_at(config: RunConfig, moment: str, step: int) -> None:
    job = start(str(HERE / "killed_run.py"), write(config), moment, str(step))
    assert finish(job)[0] == -signal.SIGKILL


def same(ours: RunConfig, theirs: RunConfig) -> bool:
    """Check that two runs have the same curves and weights, bit for bit, and left no stray files."""
    for key in ("step", "loss", "grad_norm", "lr", "tokens", "skipped"):
        assert curve(ours.output, key) == curve(theirs.output, key), key
    a, b = weights(ours.output), weights(theirs.output)
    assert not list((Path(ours.output) / "checkpoints").glob("*.tmp"))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_a_run_killed_in_write_rename_or_removal_resumes_exactly(tokens: Path, tmp_path: Path) -> None:
    straight, broken = (run(tokens, tmp_path / name, 50, 10) for name in ("straight", "broken"))
    folder = Path(broken.output) / "checkpoints"

    killed_at(broken, "written", 20)
    assert verify(newest_checkpoint(broken.output)).position.step == 10
    assert (folder / "step-00000020.tmp").is_dir()
    # What the killed run wrote after its checkpoint is cut off; a half-written row is no row.
    with (Path(broken.output) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99')

    killed_at(broken, "renamed", 30)
    assert verify(newest_checkpoint(broken.output)).position.step == 30
    assert (folder / "latest").read_text() == "step-00000020\n"

    killed_at(broken, "removing", 50)
    assert (folder / "latest").read_text() == "step-00000050\n"
    assert any(not (left / "manifest.json").exists() for left in folder.glob("step-*"))

    job = start("-m", "gpt2train.train", "--config", str(Path(broken.output) / "config.toml"))
    code, out, err = finish(job)  # there is nothing left to train, but to tidy
    assert code == 0 and "resuming from step 50" in out, err
    code, _, err = finish(start("-m", "gpt2train.train", "--config", write(straight)))
    assert code == 0, err
    assert same(broken, straight)
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000040", "step-00000050"]


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
        checkpoints.save(
            engine.state(), position.model_copy(update={"step": 6, "updates": 6, "skipped": 0, "samples": 48})
        )
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
        checkpoints.save(engine.state(), position.model_copy(update={"step": 3, "updates": 3, "samples": 24}))
    other = config(tokens, tmp_path / "other", 3, checkpoints={"init_from": run.output, "restore": "weights"})
    with pytest.raises(RunError, match=r"model\.wte\.weight .*; give another checkpoints\.init_from"):
        train(other, alone)


@pytest.mark.exhaustive
def test_all_ranks_agree_to_save_nothing_on_every_layout(tokens: Path, tmp_path: Path) -> None:
    """Two ranks: a weight or a moment is lost on the second one alone."""
    layouts: dict[str, dict[str, Any]] = {"zero-0": {}, "zero-3": {"zero": 3}, "tp": {"tp": 2}, "pp": {"pp": 2}}
    layouts["zero-1-offload"] = {"zero": 1, "cpu_offload": True}
    runs = [
        write(config(tokens, tmp_path / f"{name}-{how}", 9, parallel=layout))
        for name, layout in layouts.items()
        for how in ("weight", "moment")
    ]
    code, out, err = finish(start(str(HERE / "diverging_runs.py"), *runs), 280)
    assert code == 0, err + out
    for run in runs:
        assert checkpoint_steps(Path(run).with_suffix("")) == [3, 6, 9], run
        assert f"{Path(run).with_suffix('').name}: not saved" in out
