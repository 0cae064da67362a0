"""A warm pool of spawned worker processes: calls with a deadline, workers replaced when they hang or die.

Spawned, not forked: `tokenizers` and lxml misbehave after a fork of a process with threads. The pool is pebble's,
which kills and replaces a single worker where `concurrent.futures` would lose the whole pool.
"""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pebble

from gpt2train.errors import UserError

T = TypeVar("T")

# One process a core is the parallelism; threads of numeric libraries inside a worker would only fight over the cores.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class WorkerLost(Exception):
    """A call did not come back: its worker died, or was killed at the deadline.

    Attributes:
        timed_out: True when the deadline passed, False when the process died by itself.
    """

    def __init__(self, message: str, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class WorkerPool:
    """Spawned worker processes that stay warm between steps. Starts with the first call."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        for name, value in SINGLE_THREADED.items():
            os.environ.setdefault(name, value)
        context = multiprocessing.get_context("spawn")
        self._pool = pebble.ProcessPool(max_workers=workers, initializer=_start_worker, context=context)

    def submit(
        self, function: Callable[..., T], *args: Any, timeout: float | None = None
    ) -> "concurrent.futures.Future[T]":
        """Run `function(*args)` in a worker; the deadline counts from when the worker takes the call.

        The future's error may be pebble's; wait with `result` to get `WorkerLost` instead.
        """
        return self._pool.schedule(function, args=args, timeout=timeout)

    def call(self, function: Callable[..., T], *args: Any, timeout: float | None = None) -> T:
        """Run `function(*args)` in a worker and wait for it.

        Raises:
            WorkerLost: the worker died or the deadline passed. What the function raises comes through as it is.
        """
        return result(self.submit(function, *args, timeout=timeout))

    def close(self) -> None:
        """End all workers now."""
        if _own.pool is self:
            _own.pool = None
        self._pool.stop()
        self._pool.join()


class _Own:
    """The pool of this process."""

    pool: WorkerPool | None = None


_own = _Own()
_making = threading.Lock()


def adopt(pool: WorkerPool) -> WorkerPool:
    """Make a pool the one that `local_pool` gives in this process, until it is closed."""
    _own.pool = pool
    return pool


def local_pool() -> WorkerPool:
    """The pool of the process that asks, for a batch that hands on its pieces one by one.

    In a runner's process that is the runner's pool. A cluster's worker takes one batch at a time, so one process
    beside it keeps its core busy; it is made with the first batch that needs it and stays warm for the next.

    Raises:
        UserError: this process may have no children (a Dask worker that was started as a daemon).
    """
    with _making:
        if _own.pool is None:
            if multiprocessing.current_process().daemon:
                raise UserError(
                    "the cluster's workers may not start processes, which the extraction needs; start them with "
                    "DASK_DISTRIBUTED__WORKER__DAEMON=False in their environment"
                )
            _own.pool = WorkerPool(1)
        return _own.pool


def result(future: "concurrent.futures.Future[T]") -> T:
    """Wait for a pool's future.

    Raises:
        WorkerLost: the worker died or the deadline passed.
    """
    try:
        return future.result()
    except concurrent.futures.TimeoutError as error:
        raise WorkerLost("the deadline passed", timed_out=True) from error
    except pebble.ProcessExpired as error:
        raise WorkerLost(f"the worker process died (exit code {error.exitcode})", timed_out=False) from error


def _start_worker() -> None:
    """Make a worker end with its parent, however that ends (`kill -9` runs no clean-up of ours)."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a spawned worker only"
    # Not prctl: the kernel would watch the *thread* that spawned the worker, and that thread may be short-lived.
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
