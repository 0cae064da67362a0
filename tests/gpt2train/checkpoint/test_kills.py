"""Trainings killed at any instant and run again: the numbers of an undisturbed run."""

import signal
from pathlib import Path

import pytest
import torch

from gpt2train.checkpoint.manifest import verify
from gpt2train.config import RunConfig
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.jobs import curve, finish, make, start, weights, write

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
