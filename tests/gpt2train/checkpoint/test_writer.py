"""Saves in the background, of a frozen state, and trainings killed at any instant of a save."""

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
from gpt2train.checkpoint.manifest import CheckpointManifest, read_manifest, verify
from gpt2train.checkpoint.store import SafeReader
from gpt2train.config import RunConfig
from gpt2train.errors import RunError
from gpt2train.launch.rank_process import StopRequest
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.run_logger import RunLogger
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from gpt2train.train import train
from gpt2train.training.engine import Engine
from tests.gpt2train.checkpoint.file_limit import file_limit
from tests.gpt2train.checkpoint.stored_weights import load_weights
from tests.gpt2train.jobs import curve, finish, make, start, wait_until, weights, with_lr, write


def everything(checkpoint: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, weights and optimizer."""
    stored = SafeReader(checkpoint).read_metadata().state_dict_metadata
    state = {name: torch.empty(entry.size) for name, entry in stored.items()}
    dcp.load(state, storage_reader=SafeReader(checkpoint))
    return state


def delay(monkeypatch: pytest.MonkeyPatch, before: Callable[[CheckpointManifest], object]) -> None:
    """Do something in the background before each checkpoint is written."""
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


@pytest.mark.parametrize(("error", "saved"), [(ValueError, 4), (KeyboardInterrupt, 2)])
def test_an_unexpected_error_waits_for_the_save_under_way(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch, error: type, saved: int
) -> None:
    config = make(tokens, tmp_path / "run", steps=8, checkpoints={"interval": 2, "keep": 9})
    failing = threading.Event()

    def until_the_error(manifest: CheckpointManifest) -> None:
        if manifest.position.step == 4:
            failing.wait()
            time.sleep(0.3)

    def fail(logger: RunLogger, row: dict[str, Any], *rest: Any) -> None:
        if row["step"] == 5:
            failing.set()
            raise error

    delay(monkeypatch, until_the_error)
    monkeypatch.setattr(RunLogger, "write", fail)
    with pytest.raises(error):
        train(config, alone)
    assert newest_checkpoint(config.output).name == f"step-0000000{saved}"
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
    message = r"cannot save .*step-00000010.*earlier checkpoints are intact"
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


def test_an_error_of_the_training_waits_for_the_running_save(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save of sound weights is under way when the loss diverges; it is completed."""
    settings: dict[str, Any] = {
        "schedule": {"kind": "constant", "warmup": 0},
        "checkpoints": {"interval": 11},
        "spikes": {"max_skipped_steps": 11},
        "validation": {"interval": 1000},
    }
    config = with_lr(make(tokens, tmp_path / "run", steps=100, **settings), 1e30)
    original, rates = Engine.update, iter([1e-3] * 11 + [1e30] * 89)
    monkeypatch.setattr(
        Engine, "update", lambda engine, measure, lr, skip=False: original(engine, measure, next(rates), skip)
    )
    delay(monkeypatch, lambda manifest: wait_until(lambda: read_metrics(config.output)[-1]["step"] >= 23))
    with pytest.raises(RunError, match="11 steps in a row were skipped"):
        train(config, alone)
    assert verify(newest_checkpoint(config.output)).position.step == 11


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
