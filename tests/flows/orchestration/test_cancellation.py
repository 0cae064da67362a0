"""End of a run that others ask for: the decision by its state, and closed terminals."""

import contextlib
import signal
import threading
import uuid
from typing import Any

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort, Pause
from prefect.states import Suspended

from flows.orchestration import run_guard
from flows.orchestration.run_guard import RunEndedError, _is_unreported, how_to_end, watched

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
    said = [record.getMessage() for record in caplog.records]
    assert ended.is_set() and said[-1] == "the run was suspended; this process saves its work and ends"
    assert [line.partition(" (")[0] for line in said[:-1]] == ["the Prefect server does not answer"] * 2
