"""A disk that fills up during a deployed run: one error line, no leftovers, and a resume after space is freed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from flows.demo import DemoSite
from flows.orchestration.server import prefect_server
from gpt2train.checkpoint.manifest import verify
from gpt2train.errors import RunError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.run_folder import newest_checkpoint
from tests.flows.deployed_run import ENDLESS, SECONDS, Deployed, deploy, only_worker_left, uninterrupted_losses
from tests.flows.mini_pipeline import Mini
from tests.flows.prefect_server import PrefectServer, running_server
from tests.flows.small_tokens import prepare_tokens
from tests.processes import wait_for
from tests.small_disk import fill, free, small_disk

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800), pytest.mark.xdist_group("full disk")]
STEPS = 1500
ROOM = 400_000  # bytes: for the metrics of some hundred steps, for no checkpoint (0.9 MB)
TRAIN: dict[str, Any] = {
    **ENDLESS,
    "model": {**ENDLESS["model"], "hidden": 64},
    "validation": {"interval": 100, "samples": 4},
    "checkpoints": {"interval": 100, "keep": 2},
    "logging": {"interval": 50},  # with TensorBoard's curves, as a deployment has them
    "steps": STEPS,
}


@pytest.fixture(scope="module")
def long_lived_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with running_server(tmp_path_factory.mktemp("full") / "prefect") as running:
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "60m") as mounted:
        if not mounted:
            pytest.skip("mounting a small disk is not allowed here")
        yield tmp_path / "disk"


class FullDiskRuns:
    """Runs of a deployment that end because the disk is full."""

    def __init__(self, deployed: Deployed, worker: psutil.Process) -> None:
        self.deployed, self.worker = deployed, worker

    def check_failed_in_one_line(self, run: str) -> None:
        """Check that a run is Failed, names disk and remedy in one line, retried nothing and left no process."""
        message = self.deployed.wait(run, "FAILED")["message"]
        assert re.search("no space left while |lacks disk space", message), message
        assert str(self.deployed.output) in message
        assert "free some" in message and "\n" not in message
        assert max([task["run_count"] for task in self.deployed.task_runs(run)], default=1) == 1
        logs = self.deployed.server.ask("POST", "logs/filter", logs={"flow_run_id": {"any_": [run]}})
        assert [line["message"] for line in logs if "Traceback" in line["message"]] == []
        wait_for(lambda: only_worker_left(self.deployed, self.worker), SECONDS, "the end of all processes")

    def retry(self, run: str) -> None:
        """Retry a run, as the UI does."""
        self.deployed.set_state(run, "SCHEDULED", "AwaitingRetry")
        # The run must have left its old final state, or that would pass for the new one.
        wait_for(lambda: self.deployed.state(run)["type"] not in ("FAILED", "SCHEDULED"), SECONDS, "the retry")


def test_training_resumes_from_its_last_checkpoint(
    long_lived_server: PrefectServer, disk: Path, tmp_path: Path
) -> None:
    output = prepare_tokens(disk / "out")
    launch = {"processes": 2}
    parameters = {"config": "pretrain/tiny", "output": str(output), "train": TRAIN, "launch": launch, "score": False}
    training = deploy(
        long_lived_server, "full", "flows/pretrain.py:pretrain", parameters, output, tmp_path / "worker.log"
    )
    with long_lived_server.worker(training.pool, training.log) as worker:
        watched = FullDiskRuns(training, worker)
        run = training.start()
        for left in (ROOM, 0):  # no space for the next checkpoint; or for the next row of the metrics
            begun = training.saved()
            wait_for(lambda begun=begun: training.saved() > begun, SECONDS, "a checkpoint")
            fill(disk, left)
            watched.check_failed_in_one_line(run)
            saved = training.saved()
            assert begun < saved < STEPS
            assert verify(newest_checkpoint(training.folder)).position.step == saved
            assert not list(training.folder.glob("checkpoints/*.tmp"))
            fill(disk)
            watched.retry(run)
            watched.check_failed_in_one_line(run)
            assert training.saved() == saved
            free(disk)
            watched.retry(run)
        training.wait(run, "COMPLETED")
        assert training.steps() == list(range(1, STEPS + 1))
    losses = [row["loss"] for row in read_metrics(training.folder)]
    np.testing.assert_array_equal(losses, uninterrupted_losses(training, tmp_path, STEPS))


def test_data_steps_resume_from_committed_batches(
    long_lived_server: PrefectServer, disk: Path, tmp_path: Path, site: DemoSite
) -> None:
    config = str(Mini(tmp_path / "mini", site.connect_to).folder / "mini.toml")

    def data(name: str, output: Path) -> Deployed:
        parameters = {"config": config, "output": str(output)}
        return deploy(
            long_lived_server, name, "flows/dataprep.py:dataprep", parameters, output, tmp_path / f"{name}.log"
        )

    def contents(output: Path) -> dict[str, str]:
        found = (json.loads(path.read_bytes()) for path in output.glob("*/_manifest.json"))
        return {one["step"]: one["content"] for one in found}

    preparing = data("filled", disk / "out")
    with long_lived_server.worker(preparing.pool, preparing.log) as worker:
        watched = FullDiskRuns(preparing, worker)
        run = preparing.start()
        for step in ("blacklist", "extract", "dedup"):
            wait_for(lambda step=step: step in contents(preparing.output), SECONDS, f"the end of {step}")
            fill(disk)
            watched.check_failed_in_one_line(run)
            before = contents(preparing.output)
            assert step in before and "tokenize" not in before
            free(disk)
            watched.retry(run)
        preparing.wait(run, "COMPLETED")
    free_run = data("free", tmp_path / "out")
    with long_lived_server.worker(free_run.pool, free_run.log):
        free_run.wait(free_run.start(), "COMPLETED")
    # Pages and the report hold the clock; all that is made of the pages' text is the same.
    ours, theirs = contents(preparing.output), contents(free_run.output)
    assert {step for step in theirs if ours[step] != theirs[step]} <= {"download", "report"}
    assert ours.keys() == theirs.keys()


def test_a_command_without_space_for_its_server_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "disk"))
    with small_disk(tmp_path / "disk", "200k") as mounted:
        if not mounted:
            pytest.skip("mounting a small disk is not allowed here")
        with pytest.raises(RunError, match=r"no space left in .*disk for the embedded"), prefect_server():
            pass
