"""The training loop in real torchrun jobs: equal numbers on every layout; killed, stopped, failing, resumed."""

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gpt2train.checkpoint import writer
from gpt2train.checkpoint.manifest import verify
from gpt2train.config import RunConfig
from gpt2train.data.sharded_dataset import open_tokens, tokens_identity
from gpt2train.data.training_data import packed_data
from gpt2train.errors import RunError, UserError
from gpt2train.launch.rank_logs import log_to
from gpt2train.launch.rank_process import install_excepthook, lock_run_folder
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import curve, finish, make, start, wait_for, weights, with_lr, write
from tests.processes import command_of, wait_until_ended

HERE = Path(__file__).parent
LAYOUTS: dict[str, dict[str, Any]] = {
    **{f"zero {zero}": {"zero": zero} for zero in range(4)},
    "tensor parallel": {"tp": 2},
    "two stages": {"pp": 2},
}
SHORT: dict[str, Any] = {"steps": 10, "validation": {"interval": 5}, "checkpoints": {"interval": 5}}


@pytest.fixture(scope="module")
def two_ranks(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunConfig]:
    """Finished runs of two processes, all in one process group: every ZeRO stage, tensor parallel, two stages."""
    folder = tmp_path_factory.mktemp("two")
    runs = {
        name: make(tokens, folder / name.replace(" ", ""), parallel=parallel, **SHORT)
        for name, parallel in LAYOUTS.items()
    }
    run_ranks(HERE / "parity/train_runs.py", *map(write, runs.values()))
    return runs


def test_every_layout_trains_the_same(
    tokens: Path, tmp_path: Path, alone: DistContext, two_ranks: dict[str, RunConfig]
) -> None:
    reference = make(tokens, tmp_path / "alone", batch={"micro_batch": 4}, **SHORT)
    train(reference, alone)
    expected = curve(reference.output)
    assert expected[-1] < expected[0] - 0.1
    for run in two_ranks.values():
        for key in ("loss", "grad_norm"):
            np.testing.assert_allclose(curve(run.output, key), curve(reference.output, key), rtol=1e-5, err_msg=key)
        ours, theirs = weights(run.output), weights(reference.output)
        assert list(ours) == list(theirs)
        assert all((ours[name] - theirs[name]).abs().max() < 1e-3 for name in ours)
        valid = [row["valid_loss"] for row in read_metrics(run.output) if "valid_loss" in row]
        assert len(valid) == 2
        np.testing.assert_allclose(valid[-1], read_metrics(reference.output)[-1]["valid_loss"], rtol=1e-5)


@pytest.mark.slow
def test_a_sharded_run_resumes_in_one_process(
    tokens: Path, alone: DistContext, two_ranks: dict[str, RunConfig]
) -> None:
    run = Path(two_ranks["zero 3"].output)
    straight = curve(run)
    writer.remove(newest_checkpoint(run))  # back to step 5
    train(make(tokens, run, **SHORT), alone)
    assert curve(run)[:5] == straight[:5] and curve(run)[5:] != straight[5:]
    np.testing.assert_allclose(curve(run), straight, rtol=1e-5)


def test_sigterm_saves_and_a_second_job_is_refused(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", steps=1_000_000, checkpoints={"interval": 1_000_000})
    job = start("-m", "gpt2train.train", "--config", write(config))
    wait_for(lambda: len(read_metrics(config.output)) > 3, job)
    with pytest.raises(UserError, match="another training job uses"):
        train(config, alone)
    job.terminate()
    code, out, err = finish(job)
    assert (code, err) == (0, "")
    assert "the same command resumes from there" in out
    saved = verify(newest_checkpoint(config.output)).position
    assert saved.step == read_metrics(config.output)[-1]["step"] > 3
    assert saved.samples == 8 * saved.step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("raise", "error: rank 1: ValueError: broken on purpose"),
        ("die", "error: rank 1 on "),
        ("threads", "error: rank 1: RuntimeError: can't start new thread; raise the limit (of processes: ulimit -u"),
        ("files", "error: rank 1: …Too many open files; raise the limit (ulimit -n) and run again"),
    ],
)
def test_a_failing_rank_ends_the_job_in_one_line(
    how: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank, whose log is shown on the screen, meets a broken connection; tracebacks are in the logs alone."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    job = start(str(HERE / "failing_rank.py"), how, str(tmp_path))
    code, out, err = finish(job)
    assert (code, out) == (1, ""), err
    begin, _, end = line.partition("…")
    assert err.startswith(begin) and end in err and len(err.splitlines()) == 1, err
    assert (tmp_path / "rank-0.log").exists() and (tmp_path / "rank-1.log").exists()
    wait_until_ended([one for one in psutil.process_iter() if str(tmp_path) in command_of(one)])
    assert not list(temporary.glob("torchelastic*"))
    if how == "raise":
        assert "Traceback" in (tmp_path / "rank-1.log").read_text()  # the other may be ended before it writes one


def test_mock_tokens_train_without_a_file(
    tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"data": {"train": "mock:300", "valid": None, "split": "949,50,1"}, "parallel": {"tp": 0, "pp": 0}}
    with caplog.at_level(logging.INFO, "gpt2train"):
        config = make(tmp_path, tmp_path / "run", steps=12, **changes)
        train(config, alone)
    assert "parameters (vocabulary 300 padded to 384), fp32" in caplog.text
    losses = curve(config.output)
    assert losses[0] > 5.5 and losses[-1] < losses[0] - 0.1
    assert curve(config.output, "epoch")[-1] == pytest.approx(12 * 8 / packed_data(config, "train").per_epoch)
    data = open_tokens("mock:300")
    assert tokens_identity(data)[0].startswith("cf6019c57b6cf4d7") and 900_000 < len(data.tokens) < 1_200_000
    assert set(np.unique(np.diff(data.tokens.astype(int)) % 300)) == {1, 2, 3}
    for name in ("mock:", "mock:1", "mock:x"):
        with pytest.raises(UserError, match=f"{name} is no name of mock tokens; give the size of the vocabulary, as"):
            open_tokens(name)


def test_a_finished_run_is_left_unchanged(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", steps=4)
    position = train(config, alone)
    rows = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert (position.step, position.samples) == (4, 32)
    assert train(config, alone) == position
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == rows


@pytest.mark.slow
def test_all_ranks_skip_a_damaged_checkpoint(tokens: Path, tmp_path: Path) -> None:
    settings = {"model": {"dropout": 0.1}, "steps": 60, "checkpoints": {"interval": 10, "keep": 2}}
    config = make(tokens, tmp_path / "run", **settings)
    run_ranks(HERE / "parity/train_runs.py", write(config))
    straight = curve(config.output)
    (newest_checkpoint(config.output) / ".metadata").write_bytes(b"")
    code, out, err = finish(start("-m", "gpt2train.train", "--config", write(config)))
    assert code == 0, err
    assert "resuming from step 50" in out
    assert curve(config.output) == straight


def test_an_unwritable_output_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*; give another output"):
        log_to(tmp_path / "file" / "logs", 0)
    with (
        pytest.raises(UserError, match=r"cannot write .*; give another output"),
        lock_run_folder(tmp_path / "file" / "run"),
    ):
        pass


def test_the_traceback_of_a_thread_is_only_in_the_log_of_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("gpt2train")
    for owner, name in ((sys, "excepthook"), (threading, "excepthook"), (logging, "raiseExceptions")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(log, name, getattr(log, name))
    log_to(tmp_path, 0, screen=False)
    install_excepthook(0, debug=False)
    ended = threading.Thread(target=lambda: (tmp_path / "none").read_text(), name="curves")
    ended.start()
    ended.join()
    logged = (tmp_path / "rank-0.log").read_text()
    assert "WARNING attempt 0: curves ended with FileNotFoundError: " in logged and "Traceback" in logged
    assert capfd.readouterr() == ("", "")


def test_non_finite_gradients_are_skipped_and_counted_and_end_the_run(
    tokens: Path, tmp_path: Path, alone: DistContext
) -> None:
    config = with_lr(make(tokens, tmp_path / "run", schedule={"warmup": 0, "min_lr": 0.0}), 1e30)
    said = "10 steps in a row were skipped, up to step 11; first in step 2: the loss on rank 0 is not finite"
    with pytest.raises(RunError, match=said):
        train(config, alone)
    rows = read_metrics(config.output)
    assert [row["skipped"] for row in rows] == [0, *range(1, 11)]
    assert rows[-1]["grad_norm"] is None and rows[-1]["lr"] == 0
    json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
