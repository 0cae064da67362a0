"""Trainings of a Prefect server that wait for the GPUs of each other: what their run pages show."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.flows.prefect_server import PrefectServer, running_server
from tests.processes import wait_for

TRAINS = """
import sys
import flows
from prefect import flow
from flows.orchestration.task_runner import PrefectRunner

@flow(name="trains", flow_run_name=sys.argv[1])
def trains():
    with PrefectRunner() as runner, runner.gpu_slot(["cores"], 1, "out/runs/" + sys.argv[1]):
        print("holds a slot", flush=True)
        sys.stdin.read()

trains()
"""


@dataclass
class Trainings:
    """Runs that take a GPU slot and hold it until they are asked to end.

    Attributes:
        prefect_server: their server.
        folder: for logs and lock files.
    """

    prefect_server: PrefectServer
    folder: Path
    running: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def start(self, name: str) -> Path:
        """Start one; its log."""
        log = self.folder / f"{name}.log"
        environment = {**self.prefect_server.environment, "GPT2TRAIN_GPU_QUEUE": str(self.folder / "locks")}
        command = [sys.executable, "-c", TRAINS, name]
        with log.open("w") as file:
            self.running.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, text=True
                )
            )
        return log

    def shows(self, words: str) -> bool:
        """True if an artifact of a run contains this text."""
        pages = self.prefect_server.ask("POST", "artifacts/filter")
        return any(words in found["data"] for found in pages if found["key"] == "gpu-queue")


def has_slot(log: Path) -> bool:
    """True if a run has its slot."""
    assert "Traceback" not in log.read_text(), log.read_text()
    return "holds a slot" in log.read_text()


@pytest.fixture
def trainings(tmp_path: Path) -> Iterator[Trainings]:
    with running_server(tmp_path / "prefect") as prefect_server:
        found = Trainings(prefect_server, tmp_path)
        try:
            yield found
        finally:
            for one in found.running:
                one.kill()
                one.wait()


@pytest.mark.exhaustive
def test_a_waiting_run_names_the_holder(trainings: Trainings) -> None:
    running = trainings.running
    first = trainings.start("first")
    wait_for(lambda: has_slot(first), 120, "the first training")
    second = trainings.start("second")
    taken = f"cores is taken by first at work in out/runs/first (process {running[0].pid})"
    wait_for(lambda: trainings.shows(taken), 120, "what the second waits for")
    assert not has_slot(second)
    running[0].communicate("")
    wait_for(lambda: has_slot(second), 120, "the second training")
    wait_for(lambda: trainings.shows("Training began after the run waited"), 60, "its page")
