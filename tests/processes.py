"""Processes that a test started: their state, and waiting for their end.

A process can be gone when it is read a moment after it was listed. And one that is ending gives its memory back first,
its environment with it, while it still holds its files and locks: for some milliseconds it has none, yet still runs.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable

import psutil

MAX_END_SECONDS = 60.0
# A command in a container, as far as processes go: it is the first of them, and all others end with it.
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.05)


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(processes: Iterable[psutil.Process], seconds: float = MAX_END_SECONDS) -> None:
    left = list(processes)
    deadline = time.monotonic() + seconds
    while left := [process for process in left if not has_ended(process)]:
        assert time.monotonic() < deadline, f"after {seconds:.0f} s there are still {left}"
        time.sleep(0.05)


def environment_of(process: psutil.Process) -> dict[str, str]:
    """The environment of a process; empty if it has ended, is ending, or may not be read."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def parent_of(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def read_terminal(terminal: int) -> bytearray:
    """Read what a terminal shows, in a thread, until it is closed; what was read so far is in the result."""
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(terminal, 4096):
                shown.extend(data)

    threading.Thread(target=read, daemon=True).start()
    return shown
