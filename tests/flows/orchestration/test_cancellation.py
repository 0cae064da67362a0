"""End of a run that others ask for or that loses its worker: the decision by its state, closed terminals."""

import contextlib
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort, Pause
from prefect.states import Suspended

from flows.orchestration import run_guard
from flows.orchestration.run_guard import RunEndedError, _is_unreported, how_to_end, watched
from gpt2train.launch.rank_logs import quietly
from tests.processes import wait_for, wait_until_ended

OWN: State[Any] = State(type=StateType.RUNNING)
FINAL = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED)


def run_of(deployment: bool, state: State[Any] = OWN) -> FlowRun:
    return FlowRun(flow_id=uuid.uuid4(), deployment_id=uuid.uuid4() if deployment else None, state=state, run_count=1)


@pytest.mark.parametrize("has_worker", [True, False])
def test_a_run_ends_in_every_state_by_which_others_continue_or_stop_it(has_worker: bool) -> None:
    run = run_of(deployment=has_worker)

    def end(state: State[Any]) -> Any:
        found = how_to_end(run, state, has_worker)
        return found.state if isinstance(found, RunEndedError) else type(found)

    cancelled = StateType.CANCELLED
    expected: dict[StateType, Any] = {
        StateType.RUNNING: Abort,  # another one than its own: resumed
        StateType.SCHEDULED: Abort,
        StateType.PENDING: Abort,
        StateType.CANCELLED: Abort,
        StateType.CANCELLING: Abort if has_worker else cancelled,
        StateType.PAUSED: cancelled,
        **dict.fromkeys(FINAL, type(None)),
    }
    assert {kind: end(State(type=kind)) for kind in StateType} == expected
    assert end(OWN) is type(None)
    assert end(Suspended()) == (Pause if has_worker else cancelled)


def test_the_crash_reporter_reports_only_the_process_that_it_belongs_to() -> None:
    """A run that is resumed has the same run count in its next process."""
    resumed = State(type=StateType.RUNNING)
    cancelling: State[Any] = State(type=StateType.CANCELLING)
    for state, is_own in ((OWN, True), (resumed, False), (Suspended(), False), (cancelling, True)):
        assert _is_unreported(run_of(True, state), "1", str(OWN.id)) is is_own
        assert not _is_unreported(run_of(True, state), "2", str(OWN.id))


def test_a_block_that_nobody_ends_leaves_the_signals_as_they_were() -> None:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("run by nohup: closed terminals end nothing")
    before = signal.getsignal(signal.SIGHUP)
    with watched(run_of(False), has_worker=False):
        assert signal.getsignal(signal.SIGHUP) is not before
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_server_that_is_away_is_reported_once_and_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each time that it is away, and the run is suspended when it answers again."""
    run = run_of(True)
    suspended = run.model_copy(update={"state": Suspended()})
    answers = iter([None, None, None, run, None, None, suspended])
    ended = threading.Event()

    class Client:
        def read_flow_run(self, _: uuid.UUID) -> FlowRun:
            if (found := next(answers)) is None:
                raise httpx.ConnectError("refused")
            return found

    monkeypatch.setattr(run_guard, "STATE_SECONDS", 0.001)
    monkeypatch.setattr(run_guard, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(run_guard, "brief_client", lambda _: contextlib.nullcontext(Client()))
    monkeypatch.setattr(run_guard, "is_embedded", lambda: False)
    watch = run_guard._Watch(run, has_worker=True)
    monkeypatch.setattr(watch, "stop", lambda end: ended.set() if isinstance(end, Pause) else None)
    watch.poll()
    said = [record.getMessage() for record in caplog.records if record.name == run_guard.log.name]  # not Prefect's own
    assert ended.is_set() and said[-1] == "the run was suspended; this process saves its work and ends"
    assert [line.partition(" (")[0] for line in said[:-1]] == ["the Prefect server does not answer"] * 2


SECONDS = 120.0
# Holds the reading end of the flow's standard output, and reads none of it.
WORKER = """
import subprocess, sys, time
flow = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
time.sleep(600)
"""
# Logs by Prefect's own handler, as a deployed flow does.
FLOW = """
import logging, os, signal, sys, time
from pathlib import Path
import psutil
from prefect.logging.handlers import PrefectConsoleHandler
from flows.orchestration import run_guard

folder, silent = Path(sys.argv[1]), sys.argv[2] == "silent"
logging.getLogger("gpt2train").addHandler(PrefectConsoleHandler(sys.stdout))
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
run_guard.terminate_with([psutil.Process(os.getppid())], 60)
(folder / "pid").write_text(str(os.getpid()))
while not stopped:
    if not silent:
        logging.getLogger("gpt2train").warning("a line of the flow")
        print("and one of another's", flush=True)
    time.sleep(0.05)
(folder / "saved").touch()
logging.getLogger("gpt2train").warning("saved")
(folder / "reported").touch()
"""


@pytest.mark.parametrize("kind", ["silent", "talking"])
def test_a_flow_shuts_down_cleanly_when_its_worker_is_killed(kind: str, tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, FLOW, str(tmp_path), kind])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), SECONDS, "the flow")
        flow = psutil.Process(int((tmp_path / "pid").read_text()))
    finally:
        worker.kill()
        worker.wait()
    try:
        wait_for((tmp_path / "reported").exists, SECONDS, "the flow's own end")
        wait_until_ended([flow])
    finally:
        if flow.is_running():
            flow.send_signal(signal.SIGKILL)
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("error", [SystemExit(1), BrokenPipeError(), ValueError("closed file"), KeyboardInterrupt()])
def test_logging_in_a_watchdog_raises_nothing(error: BaseException) -> None:
    said = []

    def write(line: str, flush: bool = False) -> None:
        said.append((line, flush))
        raise error

    quietly(write)("it is gone", flush=True)
    assert said == [("it is gone", True)]
