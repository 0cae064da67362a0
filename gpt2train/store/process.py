"""Life of a process: it ends with its parent or its terminal, shows that it is alive, and exits when its work is done.

`kill -9` runs no handler, so that each child watches its parent itself: by `prctl(PR_SET_PDEATHSIG)` on Linux, by a
thread elsewhere.
"""

import atexit
import contextlib
import ctypes
import errno
import io
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends a process at once on any signal

MULTIPLEXERS = {"TMUX", "STY"}  # environment variables of tmux and screen, whose terminals outlive a connection
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}  # disk full, or quota exceeded
MIN_COLUMNS = 20
CLOSING = "closing this terminal ends the run, which saves first; tmux or nohup keep it running"


def die_with_parent(parent: int | None = None, sig: signal.Signals = KILL) -> None:
    """Send this process a signal as soon as its parent dies.

    The kernel watches the parent *thread* that created this process; callers keep that thread alive as long as the
    child. `die_after_parent` needs no such thread.

    The parent gives its own process id; by default it is the current parent's. If the parent is already gone, this
    process ends at once, which closes the race between fork and this call.
    """
    expected = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    else:
        signal_after(lambda: _wait_for_end(expected), sig)
    if os.getppid() != expected:
        os._exit(1)


def die_after_parent() -> None:
    """Kill this process, a child of `multiprocessing`, when its parent dies, so that no orphan waits for work."""
    if parent := multiprocessing.parent_process():
        signal_after(parent.join)


def signal_after(
    wait: Callable[[], object],
    sig: signal.Signals = KILL,
    grace: float = 0.0,
    report: Callable[[], object] = lambda: None,
) -> None:
    """Send this process a signal when `wait` returns, in a thread; then call `report`.

    Unless the signal is SIGKILL, `grace` seconds above 0 are left to end on it, after which the process is killed.
    """

    def watch() -> None:
        wait()
        os.kill(os.getpid(), sig)
        report()
        if grace:
            time.sleep(grace)
            os.kill(os.getpid(), KILL)

    threading.Thread(target=watch, daemon=True).start()


def end_with_descendants(code: int) -> NoReturn:
    """Kill all descendants of this process, also those that ignore SIGTERM, and end it at once."""
    import psutil  # here: few processes need it

    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    os._exit(code)


def _wait_for_end(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)


# By which schedulers announce the end of a job: Slurm's --signal=USR1@90, a preemption, Grid Engine's -notify.
WARNING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))


def hangup_signals() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, by which a closed terminal ends its processes, unless nohup or a scheduler has them ignore it."""
    if not hasattr(signal, "SIGHUP"):  # Windows
        return ()
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


def ends_with_terminal() -> bool:
    """Return True if closing a terminal ends this process: it writes to one, and neither nohup nor tmux protects it.

    To be called before the process handles SIGHUP itself.
    """
    return sys.stdout.isatty() and bool(hangup_signals()) and not MULTIPLEXERS & os.environ.keys()


class _DroppingStream(io.FileIO):
    """Standard stream that drops what a full disk refuses, since no run should end for a line of its log."""

    def write(self, data: Any, /) -> int:
        """Write bytes, or drop them."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return memoryview(data).nbytes


def prepare_streams(*logs: str) -> None:
    """Open the standard streams that are closed, and let those of `logs`, such as `stderr`, survive a full disk.

    Otherwise the next file that is opened gets the descriptor of a closed stream, and with it what libraries print.
    Output in another encoding than UTF-8 has escapes for what that lacks, and no terminal is narrower than
    `MIN_COLUMNS`: rich lays out a help page for 0 columns forever.
    """
    columns = shutil.get_terminal_size().columns
    if columns < MIN_COLUMNS or os.environ.get("COLUMNS") == "0":
        os.environ["COLUMNS"] = str(max(columns, MIN_COLUMNS))
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    for name in logs:
        old = getattr(sys, name)
        buffer = io.BufferedWriter(_DroppingStream(old.fileno(), "w", closefd=False))
        new = io.TextIOWrapper(buffer, old.encoding, old.errors, line_buffering=old.line_buffering)
        setattr(sys, name, new)


class Heartbeat:
    """Thread that calls a function every few seconds until `stop`, the end of its block, or the answer False.

    Args:
        beat: function to call, first after one interval. It handles its own errors.
        seconds: interval.
    """

    def __init__(self, beat: Callable[[], bool], seconds: float) -> None:
        self._beat, self._seconds = beat, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self, seconds: float | None = None) -> None:
        """End the thread and wait for a call that is under way, at most for some seconds."""
        self._stopped.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds) and self._beat():
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


class LastChange:
    """Time since a value last changed, by the clock of this process: clocks of two machines are not compared."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = time.monotonic()

    def age(self, value: object) -> float:
        """Seconds for which the value has been the one given here; 0 if it has just changed."""
        if value != self._value:
            self._value, self._since = value, time.monotonic()
        return time.monotonic() - self._since


_status: int | None = None


def skip_teardown() -> None:
    """Register the handler that ends a process whose work is done without the teardown of interpreter and native code.

    To be called before others register theirs, so that it runs last. Threads of native libraries can outlive their
    users and run into a destructor that calls `std::terminate` while the process ends: a program that had read one
    small Parquet file with pyarrow once ended with SIGABRT, after all its work was done.
    """
    atexit.register(_end)


def set_exit_status(code: int) -> None:
    """Set the exit status of a process whose work is done; without it the process ends in the usual way."""
    global _status
    _status = code


def _end() -> None:
    """End the process. Python has joined all threads that are no daemons, and called the other handlers."""
    if _status is not None:
        end_process(_status)


def end_process(code: int) -> NoReturn:
    """End the process at once, after its logs and standard streams are flushed."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader may be gone, or the stream closed
            stream.flush()
    os._exit(code)
