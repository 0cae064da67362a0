"""A disk that fills up during a deployed run: one error line, no leftovers, and a resume after space is freed."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from flows.orchestration.server import prefect_server
from gpt2train.checkpoint.manifest import verify
from gpt2train.errors import RunError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.run_folder import newest_checkpoint
from tests.flows.deployed_run import ENDLESS, SECONDS, Deployed, deploy, only_worker_left, uninterrupted_losses
from tests.flows.prefect_server import running_server
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


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", request.param) as mounted:
        if not mounted:
            pytest.skip("mounting a small disk is not allowed here")
        yield tmp_path / "disk"


def check_failed_in_one_line(deployed: Deployed, run: str, worker: psutil.Process) -> None:
    """Check that a run is Failed, names disk and remedy in one line, retried nothing and left no process."""
    message = deployed.wait(run, "FAILED")["message"]
    assert re.search("no space left while |lacks disk space", message), message
    assert str(deployed.output) in message and "free some" in message and "\n" not in message
    assert max([task["run_count"] for task in deployed.task_runs(run)], default=1) == 1
    logs = deployed.server.ask("POST", "logs/filter", logs={"flow_run_id": {"any_": [run]}})
    assert [line["message"] for line in logs if "Traceback" in line["message"]] == []
    wait_for(lambda: only_worker_left(deployed, worker), SECONDS, "the end of all processes")


def retry(deployed: Deployed, run: str) -> None:
    deployed.set_state(run, "SCHEDULED", "AwaitingRetry")
    # The run must have left its old final state, or that would pass for the new one.
    wait_for(lambda: deployed.state(run)["type"] not in ("FAILED", "SCHEDULED"), SECONDS, "the retry")


@pytest.mark.parametrize("disk", ["60m"], indirect=True)
def test_training_resumes_from_its_last_checkpoint(disk: Path, tmp_path: Path) -> None:
    output = prepare_tokens(disk / "out")
    launch = {"processes": 2}
    parameters = {"config": "pretrain/tiny", "output": str(output), "train": TRAIN, "launch": launch, "score": False}
    with running_server(tmp_path / "prefect") as server, contextlib.ExitStack() as stack:
        log = tmp_path / "worker.log"
        training = deploy(server, "full", "flows/pretrain.py:pretrain", parameters, output, log)
        worker = stack.enter_context(server.worker(training.pool, log))
        run = training.start()
        for left in (ROOM, 0):  # no space for the next checkpoint; or for the next row of the metrics
            begun = training.saved()
            wait_for(lambda begun=begun: training.saved() > begun, SECONDS, "a checkpoint")
            fill(disk, left)
            check_failed_in_one_line(training, run, worker)
            saved = training.saved()
            assert begun < saved < STEPS
            assert verify(newest_checkpoint(training.folder)).position.step == saved
            assert not list(training.folder.glob("checkpoints/*.tmp"))
            fill(disk)
            retry(training, run)
            check_failed_in_one_line(training, run, worker)
            assert training.saved() == saved
            free(disk)
            retry(training, run)
        training.wait(run, "COMPLETED")
        assert training.steps() == list(range(1, STEPS + 1))
    losses = [row["loss"] for row in read_metrics(training.folder)]
    np.testing.assert_array_equal(losses, uninterrupted_losses(training, tmp_path, STEPS))


@pytest.mark.parametrize("disk", ["200k"], indirect=True)
def test_a_command_without_space_for_its_server_says_so(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("PREFECT_HOME", str(disk))
    with pytest.raises(RunError, match=r"no space left in .*disk for the embedded"), prefect_server():
        pass
