"""Cancellation of flow runs without a worker: started from the command line, or after their worker died.

Cancelling a run in the UI or with the Prefect command sets its state to Cancelling; the worker that started the run
ends its process and sets Cancelled. A run without a worker would keep running in the state Cancelling. So each flow
run polls its own state on the server. A run in the state Cancelling sends itself SIGTERM, on which a training saves a
checkpoint. A run of a command then ends as Cancelled; a run of a lost worker ends as Crashed, Prefect's state for a
signal. A worker that is alive gets `WORKER_SECONDS` to end the run first.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelled, State

from gpt2train.errors import RunError

log = logging.getLogger("gpt2train")

POLL_SECONDS = 5.0
WORKER_SECONDS = 60.0  # Prefect's worker polls every 10 s, and kills after 30 s
_cancelled: set[UUID] = set()  # cancelled runs that this process has ended and not yet reported


def watch_cancellation(run: UUID, has_worker: bool) -> None:
    """Start a thread that ends this flow run when it is cancelled and its worker, if it has one, does not."""
    grace = WORKER_SECONDS if has_worker else 0.0
    threading.Thread(target=_watch, args=(run, grace), daemon=True).start()


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Make a cancelled flow of a command end in the state Cancelled. Use it in the main thread, around the flow.

    Raises:
        RunError: the run was cancelled.
    """

    def on_sigterm(number: int, _frame: object) -> None:
        # Prefect's engine sends itself the signal a second time after it has set Crashed.
        if _cancelled:
            raise RunError("the run was cancelled; run again to resume")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    previous = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        while _cancelled:  # Prefect's engine has set their state to Crashed
            run = _cancelled.pop()
            with contextlib.suppress(Exception), get_client(sync_client=True) as client:
                end: State[Any] = Cancelled(message="the run ended itself; saved work is kept")
                client.set_flow_run_state(run, end, force=True)


def _watch(run: UUID, grace: float) -> None:
    since: float | None = None
    while True:
        time.sleep(POLL_SECONDS)
        # A server that does not answer is polled again.
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:
            state = client.read_flow_run(run).state
            if state is not None and state.is_final():
                return
            if state is None or state.type != StateType.CANCELLING:
                since = None
                continue
            since = since or time.monotonic()
            if time.monotonic() - since >= grace:
                _cancelled.add(run)
                os.kill(os.getpid(), signal.SIGTERM)
                with contextlib.suppress(Exception):  # last: a handler may fail on a broken pipe
                    log.warning("the run was cancelled; it saves its state and ends")
                return
