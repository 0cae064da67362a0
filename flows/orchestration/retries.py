"""Retry policy of steps and batches: only transient errors are retried, from the batches that are committed.

A user's mistake, a bug, a full disk and a diverged loss (NaN or inf) fail at once: a second attempt would end the same
way, hours later.
"""

import logging
import threading
from typing import Any

from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task

from gpt2train.errors import RunError, TransientError, UserError
from tasks.core.runner import Retries
from tasks.core.worker_pool import WorkerLostError

log = logging.getLogger("gpt2train")

MAX_DELAYS = 50  # that Prefect accepts for a task
TRANSIENT = (TransientError, WorkerLostError, ConnectionError, TimeoutError)


def is_transient(state: State[Any]) -> bool:
    """Return True if the failure of a batch or step is transient, so that a retry may succeed."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError) or (
        isinstance(error, TRANSIENT) and not isinstance(error, UserError | RunError)
    )


class RetryCondition:
    """Prefect retry condition of a batch: its failure is transient and the flow is not stopping.

    On a cluster it is evaluated in the worker; the `stopping` event is not pickled and counts as not set.
    """

    def __init__(self, stopping: threading.Event | None = None) -> None:
        self.stopping = stopping

    def __call__(self, _task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        """Return True if the batch is to be retried."""
        return not (self.stopping is not None and self.stopping.is_set()) and is_transient(state)

    def __reduce__(self) -> tuple[type["RetryCondition"], tuple[()]]:
        return RetryCondition, ()


def retry_options(step: str, retries: Retries) -> dict[str, Any]:
    """Options of a step's Prefect task that retry transient failures.

    A lost worker process is not retried here: its batch was already retried, and `explained_loss` has made it an error
    of the run.
    """

    def is_retryable(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        if is_retried := is_transient(state):
            log.warning("%s: %s; retrying", step, state.result(raise_on_failure=False))
        return is_retried

    delays = [retries.delay * 2**index for index in range(min(retries.times, MAX_DELAYS))]
    return {"retries": retries.times, "retry_delay_seconds": delays, "retry_condition_fn": is_retryable}
