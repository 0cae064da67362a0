"""GPU slots as concurrency limits of a real Prefect server: waiting runs, their artifacts, killed runs."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.flows.prefect_server import PrefectServer, running_server
from tests.processes import wait_for

LIMIT = f"gpt2train {socket.gethostname()} cores"
TRAINS = """
import sys
import flows
from prefect import flow
from flows.orchestration import gpu_slots
from flows.ui.artifact_publisher import ArtifactPublisher

gpu_slots.STALE_SECONDS = float(sys.argv[2])

@flow(name="trains", flow_run_name=sys.argv[1])
def trains():
    publisher = ArtifactPublisher()
    with gpu_slots.prefect_slot(["cores"], int(sys.argv[3]), "out/runs/" + sys.argv[1], publisher):
        print("holds a slot", flush=True)
        sys.stdin.read()
    publisher.close()

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

    def start(self, name: str, locks: str, stale: float = 3, share: int = 1) -> Path:
        """Start one; its log. Those with the same folder of lock files are on one machine."""
        log = self.folder / f"{name}.log"
        environment = {**self.prefect_server.environment, "GPT2TRAIN_GPU_QUEUE": str(self.folder / locks)}
        command = [sys.executable, "-c", TRAINS, name, str(stale), str(share)]
        with log.open("w") as file:
            self.running.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, text=True
                )
            )
        return log

    def slots(self) -> tuple[int, int]:
        """Slots that are taken, and the limit."""
        [found] = self.prefect_server.ask("POST", "v2/concurrency_limits/filter")
        assert found["name"] == LIMIT
        return found["active_slots"], found["limit"]

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
    first = trainings.start("first", "here")
    wait_for(lambda: has_slot(first), 120, "the first training")
    assert trainings.slots() == (1, 1)

    second = trainings.start("second", "here")
    taken = f"cores is taken by first at work in out/runs/first (process {running[0].pid})"
    wait_for(lambda: trainings.shows(taken), 120, "what the second waits for")
    assert not has_slot(second)
    running[0].communicate("")
    wait_for(lambda: has_slot(second), 120, "the second training")
    wait_for(lambda: trainings.shows("Training began after the run waited"), 60, "its page")

    third = trainings.start("third", "elsewhere", stale=600)  # as in a container of its own: the server alone knows
    wait_for(lambda: trainings.shows(f"{LIMIT} has no free slot"), 120, "what the third waits for")
    assert not has_slot(third)
    running[1].communicate("")
    wait_for(lambda: has_slot(third), 120, "the third training")

    shares = trainings.start("shares", "elsewhere", share=2)
    wait_for(lambda: has_slot(shares), 120, "the one that shares")
    assert trainings.slots() == (2, 2)
    for one in running[2:]:
        one.communicate("")
        assert one.returncode == 0
    assert trainings.slots() == (0, 2)

    # A restarted server knows which slots are taken, but no lease that could run out.
    trainings.prefect_server.ask("PATCH", f"v2/concurrency_limits/{LIMIT}", active_slots=2)
    last = trainings.start("last", "here")
    wait_for(lambda: has_slot(last), 120, "the training after a server forgot")
    assert trainings.slots() == (1, 2)
    assert "freed 2 slots of runs that ended" in last.read_text()

    # The slot of a killed run is freed by the next run on the same machine.
    trainings.prefect_server.ask("PATCH", f"v2/concurrency_limits/{LIMIT}", limit=1)
    running[-1].kill()
    after = trainings.start("after", "here", stale=600)
    wait_for(lambda: has_slot(after), 45, "the training after a killed one")
    assert trainings.slots() == (1, 1)
    assert "no free slot" not in after.read_text()


@pytest.mark.exhaustive  # waits for a lease of a minute
def test_the_slot_of_a_killed_run_is_freed(trainings: Trainings) -> None:
    first = trainings.start("first", "here")
    wait_for(lambda: has_slot(first), 120, "the first training")
    trainings.running[0].kill()
    second = trainings.start("second", "elsewhere", stale=600)
    wait_for(lambda: has_slot(second), 180, "the second training")
    assert trainings.slots() == (1, 1)
