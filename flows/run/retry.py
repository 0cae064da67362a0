"""What is tried again: only what may pass by itself, and each attempt goes on from what is committed.

A user's mistake, a bug, a full disk and a lost loss fail at once: a second attempt would end the same way, hours later.
"""

import logging
import threading
from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task

from gpt2train.errors import RunError, TransientError, UserError
from tasks.pool import WorkerLost

log = logging.getLogger("gpt2train")

TRANSIENT = (TransientError, WorkerLost, ConnectionError, TimeoutError)


@dataclass(frozen=True)
class Retries:
    """How often a step is tried again, and when.

    Attributes:
        times: attempts after the first.
        delay: seconds before the second attempt; twice as long before each further one.
    """

    times: int = 2
    delay: float = 5.0

    def delays(self) -> list[float]:
        """Seconds before each further attempt; Prefect takes at most 50."""
        return [self.delay * 2**index for index in range(min(self.times, 50))]


def is_transient(state: State[Any]) -> bool:
    """Whether the failure of a batch may pass by itself."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError) or (
        isinstance(error, TRANSIENT) and not isinstance(error, UserError | RunError)
    )


class TryBatchAgain:
    """Whether a batch that failed is tried again: when that may pass, and the flow does not stop.

    On a cluster the worker decides, which knows nothing of the flow; the event stays here.
    """

    def __init__(self, stopping: threading.Event | None = None) -> None:
        self.stopping = stopping

    def __call__(self, _task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        return not (self.stopping is not None and self.stopping.is_set()) and is_transient(state)

    def __reduce__(self) -> tuple[type["TryBatchAgain"], tuple[()]]:
        return TryBatchAgain, ()


def may_pass(step: str, retries: Retries) -> dict[str, Any]:
    """A step's part in Prefect's retries, as options of its task.

    A worker process that is lost again and again was given its further attempts with its batch: it counts no more.
    """

    def again(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        error = state.result(raise_on_failure=False)
        if isinstance(error, WorkerLost) or not is_transient(state):
            return False
        log.warning("%s: %s; trying again", step, error)
        return True

    return {"retries": retries.times, "retry_delay_seconds": retries.delays(), "retry_condition_fn": again}
