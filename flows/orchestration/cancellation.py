"""End of a flow run that others ask for: cancelled, suspended, or handed to another process, and a closed terminal.

Cancelling a run in the UI or with the Prefect command sets its state to Cancelling; the worker that started the run
ends its process and sets Cancelled. Suspending sets Suspended, and Prefect ends the process at its next task, for a
training days later; resuming starts another process in the same run. So each flow run polls its own state on the server
and ends itself: it sends itself SIGTERM, on which a training saves a checkpoint.

| state that others have set | the run ends | its state then |
|---|---|---|
| Cancelling | at once; with a worker after `WORKER_SECONDS`, if that does not end it | Cancelled |
| Suspended | at once | Suspended, from which Resume continues it |
| Paused, or Suspended without a deployment | at once: nothing can resume it | Cancelled |
| Scheduled, Pending, another Running | at once: it was resumed or retried | left to the other process |
| Cancelled | at once | Cancelled |
| any other final one | not: it may come of an outage | |
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort, ObjectNotFound, Pause, TerminationSignal

from flows.compat.prefect import brief_client
from flows.orchestration.server import is_embedded
from flows.orchestration.worker_watchdog import drop_output
from gpt2train.errors import RunError
from gpt2train.store.process import LastChange, hangup_signals

log = logging.getLogger("gpt2train")

POLL_SECONDS = 5.0
ANSWER_SECONDS = 20.0
AWAY_SECONDS = 60.0  # of failed polls, until a server counts as away: SQLite is busy now and then
WORKER_SECONDS = 60.0  # Prefect's worker polls every 10 s, and kills after 30 s
CANCELLED = "the run was cancelled; run again to resume"
HUNG_UP = "the terminal was closed (SIGHUP); run again to resume, in tmux, with nohup, or by a Prefect worker"


class RunEndedError(RunError):
    """End of a run that others asked for, with the type of the state that it ends in."""

    def __init__(self, message: str, state: StateType) -> None:
        super().__init__(message)
        self.state = state


@contextlib.contextmanager
def watched(run: FlowRun, has_worker: bool) -> Iterator[None]:
    """End the run of this process when its state on the server, or its terminal, asks for it.

    Raises:
        RunEndedError: the run is to end in the state that the error has.
        Abort, Pause: Prefect's signals to leave the state of the run as it is.
    """
    watch = _Watch(run, has_worker)
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in hangup_signals() if in_main_thread}
    for number in handlers:
        signal.signal(number, lambda *_: watch.hang_up())
    thread = threading.Thread(target=watch.poll, daemon=True)
    thread.start()
    try:
        yield
    except TerminationSignal as error:
        if watch.end is None:
            raise
        raise watch.end from error
    finally:
        watch.ended.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Watch:
    """Watch of one run.

    Attributes:
        end: exception with which the run ends after the signal; None as long as nobody asked for it.
        ended: set when the work of the run has ended.
    """

    def __init__(self, run: FlowRun, has_worker: bool) -> None:
        self.run, self.has_worker = run, has_worker
        self.end: BaseException | None = None
        self.ended = threading.Event()

    def hang_up(self) -> None:
        """End the run whose terminal was closed; its output would only fail."""
        drop_output()
        self.stop(RunEndedError(HUNG_UP, StateType.CRASHED))

    def stop(self, end: BaseException) -> None:
        """End the run by SIGTERM, unless its work has ended."""
        if not self.ended.is_set() and self.end is None:
            self.end = end
            os.kill(os.getpid(), signal.SIGTERM)

    def poll(self) -> None:
        """Poll the state of the run until its work has ended, or until it is to end."""
        since: float | None = None
        silence, answers, reported = LastChange(), 0, -1
        while not self.ended.wait(POLL_SECONDS):
            try:
                with brief_client(ANSWER_SECONDS) as client:
                    state = client.read_flow_run(self.run.id).state
            except ObjectNotFound:  # deleted, or the server lost its database: its page is gone, not its work
                continue
            except Exception as error:  # noqa: BLE001 - whatever the server does must not end the run
                # The watch of the process reports the end of an embedded server.
                is_new = silence.age(answers) >= AWAY_SECONDS and reported != answers
                if is_new and not (self.ended.is_set() or is_embedded()):
                    reported = answers
                    log.warning("the Prefect server does not answer (%s); the run goes on without its page", error)
                continue
            answers += 1
            silence.age(answers)
            end = None if state is None else how_to_end(self.run, state, self.has_worker)
            if end is None:
                since = None
                continue
            since = since or time.monotonic()
            waits_for_worker = self.has_worker and state is not None and state.type == StateType.CANCELLING
            if not waits_for_worker or time.monotonic() - since >= WORKER_SECONDS:
                self.stop(end)
                with contextlib.suppress(Exception):  # last: a handler may fail on a broken pipe
                    log.warning("%s; this process saves its work and ends", str(end).partition(";")[0])
                return


def how_to_end(run: FlowRun, state: State[Any], has_worker: bool) -> BaseException | None:
    """Return the exception with which a run ends whose state others have set; None if it goes on.

    Args:
        run: the run as this process found it, in the state Running.
        state: its state on the server now.
        has_worker: a worker has started this process.
    """
    if state.type == StateType.PAUSED and run.deployment_id is not None and state.state_details.pause_reschedule:
        return Pause("the run was suspended", state=state)
    if state.type == StateType.CANCELLING and has_worker:
        return Abort("the run was cancelled")
    if state.type in (StateType.PAUSED, StateType.CANCELLING):
        return RunEndedError(CANCELLED, StateType.CANCELLED)
    if state.type == StateType.CANCELLED:
        return Abort("the run was cancelled")
    resumed = state.type == StateType.RUNNING and run.state is not None and state.id != run.state.id
    if resumed or state.type in (StateType.SCHEDULED, StateType.PENDING):
        return Abort("another process continues this run")
    return None
