"""Warm pool of worker processes: calls with a deadline, and replacement of workers that hang or die.

Workers are never forked from this process: `tokenizers` and lxml misbehave after a fork of a process with threads. They
are spawned; on Linux those of an early pool are forked from a process that has done nothing but import what they need.
The pool is pebble's, which kills and replaces a single worker, where `concurrent.futures` would lose the whole pool. It
gives up, though, when a worker dies between two calls; then a new one takes its place.
"""

import concurrent.futures
import contextlib
import functools
import importlib
import multiprocessing.context
import multiprocessing.forkserver
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import pebble

from gpt2train.errors import RunError, UserError
from gpt2train.store.process import KILL, die_after_parent, die_with_parent

T = TypeVar("T")

# One process per core: additional threads of numeric libraries would only compete for the cores.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class WorkerLostError(Exception):
    """The worker of a call died or was killed at a time limit.

    Attributes:
        timed_out: True if a limit of CPU time or wall-clock time was exceeded, False if the process died by itself.
    """

    def __init__(self, message: str, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


_starting = threading.Lock()


class _WithoutMain:
    """Process that does not import `__main__`: a user's script would run its flow again, and Prefect takes 1-3 s."""

    def start(self) -> None:
        main = vars(sys.modules["__main__"])
        with _starting:
            hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
            main["__spec__"] = None
            try:
                super().start()  # type: ignore[misc]
            finally:
                main.update(hidden)


class _Spawned(_WithoutMain, multiprocessing.context.SpawnProcess):
    pass


class _Spawning(multiprocessing.context.SpawnContext):
    Process = _Spawned


if sys.platform != "win32":

    class _Forked(_WithoutMain, multiprocessing.context.ForkServerProcess):
        pass

    class _Forking(multiprocessing.context.ForkServerContext):
        Process = _Forked


class WorkerPool:
    """Spawned worker processes that stay warm between steps; started by the first call.

    Args:
        workers: Number of processes.
        module: Module that is imported before the first call needs it; on Linux once for all workers, which share its
            memory. All pools of this process that name one name the same.
    """

    def __init__(self, workers: int, module: str | None = None) -> None:
        self.workers = workers
        _use_one_thread()
        is_forked = module is not None and sys.platform == "linux"
        context = _Forking() if is_forked else _Spawning()
        if module:
            context.set_forkserver_preload([module])
        # The process from which they are forked has the environment of its own start.
        given = (module, dict(os.environ) if is_forked else None)
        self._open = functools.partial(pebble.ProcessPool, workers, 0, _begin_worker, given, context)
        self._pool, self._opening = self._open(), threading.Lock()
        self._closed = False
        self._calls: set[concurrent.futures.Future[Any]] = set()  # that have not ended

    def submit(
        self,
        function: Callable[..., T],
        *args: Any,
        timeout: float | None = None,
        cpu_seconds: float | None = None,
    ) -> "concurrent.futures.Future[T]":
        """Run `function(*args)` in a worker; both limits, in seconds, count from the start of the call in the worker.

        The future's error may be pebble's; wait with `result` to get `WorkerLostError` instead.

        Args:
            function: Function that is importable by name, as are the types of its arguments.
            args: Arguments of the function.
            timeout: Wall-clock time after which the worker is killed.
            cpu_seconds: CPU time after which it is killed, whatever the machine's load; `spent_cpu` recognizes the
                future's error. Ignored on Windows, which has no CPU timers.

        Raises:
            BrokenProcessPool: The pool is closed.
        """
        call = (function, *args) if cpu_seconds is None else (_with_cpu_limit, cpu_seconds, function, *args)
        with self._opening:
            if self._closed:  # nobody would end the workers of a new one
                raise BrokenProcessPool("the workers have ended with their run")
            try:
                future = self._pool.schedule(call[0], args=call[1:], timeout=timeout)
            except RuntimeError:  # a worker died since the last call
                self._end()
                self._pool = self._open()
                future = self._pool.schedule(call[0], args=call[1:], timeout=timeout)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` in a worker and wait for it.

        Raises:
            WorkerLostError: The worker died. Exceptions of the function are passed on unchanged.
        """
        try:
            return result(self.submit(function, *args))
        except concurrent.futures.BrokenExecutor:  # a worker died before this call began
            return result(self.submit(function, *args))

    def close(self) -> None:
        """Kill all workers; the pool takes no further call."""
        if _pool is self:
            adopt(None)
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Kill all workers, and end the calls that pebble has not sent to one: it forgets them."""
        self._pool.stop()
        self._pool.join()
        for call in self._calls.copy():
            if not call.done():
                call.set_exception(BrokenProcessPool("the workers ended before this call began"))


def import_early(module: str) -> None:
    """Start the process that imports a module for workers that are forked from it (Linux)."""
    if sys.platform == "linux":
        _use_one_thread()
        _Forking().set_forkserver_preload([module])
        multiprocessing.forkserver.ensure_running()


def _use_one_thread() -> None:
    for name, value in SINGLE_THREADED.items():
        os.environ.setdefault(name, value)


def _begin_worker(module: str | None, environment: dict[str, str] | None) -> None:
    die_after_parent()
    if environment is not None:
        # If the process dies from which it was forked, its end is not seen: the pool would wait for its lock forever.
        die_with_parent()
        os.environ.update(environment)
    if module:
        with contextlib.suppress(Exception):  # the call that needs it raises the error
            importlib.import_module(module)


_early: "tuple[WorkerPool, concurrent.futures.Future[Any]] | None" = None  # with its first call


@contextlib.contextmanager
def early_pool(workers: int, module: str) -> Iterator[None]:
    """Start workers that import a module, for the first `open_pool` of the block with this number of them."""
    global _early
    pool = WorkerPool(workers, module)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        start = thread.submit(pool.submit, os.getpid)  # in a thread, since it waits for the imports
        _early = pool, start
        try:
            yield
        finally:
            _early = None
            concurrent.futures.wait([start])
            pool.close()


def open_pool(workers: int) -> WorkerPool:
    """Create a pool, or take the one that was started early, unless its start failed."""
    global _early
    if _early is None or _early[0].workers != workers:
        return WorkerPool(workers)
    (pool, start), _early = _early, None
    return WorkerPool(workers) if start.exception() else pool


_pool: WorkerPool | None = None  # of this process
_creation = threading.Lock()


def adopt(pool: WorkerPool | None) -> None:
    """Register a pool as the result of `local_pool` in this process, until it is closed."""
    global _pool
    _pool = pool


def local_pool() -> WorkerPool:
    """Return the pool of this process, for a batch that distributes its items to workers.

    In a runner's process this is the runner's pool. A cluster's worker takes one batch at a time, so a pool of one
    process keeps its core busy; it is created by the first batch that needs it and stays warm.

    Raises:
        UserError: This process cannot have children (a Dask worker that was started as a daemon).
    """
    with _creation:
        if _pool is None:
            if multiprocessing.current_process().daemon:
                remedy = "start them with DASK_DISTRIBUTED__WORKER__DAEMON=False in their environment"
                raise UserError(f"the cluster's workers cannot start processes, which the extraction needs; {remedy}")
            adopt(WorkerPool(1))
        assert _pool is not None
        return _pool


def result(future: "concurrent.futures.Future[T]") -> T:
    """Wait for a pool's future.

    Raises:
        WorkerLostError: The worker died or the deadline passed.
    """
    try:
        return future.result()
    except concurrent.futures.TimeoutError as error:
        raise WorkerLostError("the deadline passed", timed_out=True) from error
    except pebble.ProcessExpired as error:
        if spent_cpu(error):
            raise WorkerLostError("the limit of CPU time passed", timed_out=True) from error
        raise WorkerLostError(f"a worker process {_ended(error.exitcode)}", timed_out=False) from error


def _ended(code: int) -> str:
    """Say how a process ended; pebble gives a signal as a negative number, or as a positive one if it caught it."""
    if code in (-KILL, KILL) and sys.platform != "win32":
        return "was killed by SIGKILL (out of memory?)"
    if -code in set(signal.Signals) or code == signal.SIGTERM:
        return f"was ended by {signal.Signals(abs(code)).name}"
    return f"died (exit code {code})"


@contextlib.contextmanager
def explained_loss(step: str) -> Iterator[None]:
    """Raise a lost worker of a step as an error that says what to do.

    Raises:
        RunError: a worker was lost.
    """
    try:
        yield
    except WorkerLostError as error:
        raise RunError(
            f"{step}: {error}; finished batches are kept: the same command, or Retry, resumes after them"
        ) from error


def spent_cpu(error: BaseException) -> bool:
    """Return True if the error of a pool's future means that the call exceeded its `cpu_seconds`."""
    return isinstance(error, pebble.ProcessExpired) and sys.platform != "win32" and error.exitcode == -signal.SIGPROF


def _with_cpu_limit(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """Call a function in this process, which the kernel kills when the call has used this much CPU time.

    The default action of SIGPROF is used, because a Python handler would only run after C code (lxml, regular
    expressions) has returned.
    """
    if sys.platform == "win32":
        return function(*args)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    signal.setitimer(signal.ITIMER_PROF, seconds)  # user and system time of all threads of this process
    try:
        return function(*args)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
