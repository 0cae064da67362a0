"""Heartbeats: a function called at an interval by a thread, and the time since a value last changed."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Heartbeat:
    """Thread that calls a function every few seconds until `stop`, the end of its block, or the answer False.

    Args:
        beat: function to call, first after one interval. It handles its own errors.
        seconds: interval.
        name: name of the thread.
    """

    def __init__(self, beat: Callable[[], bool], seconds: float, name: str = "heartbeat") -> None:
        self._beat, self._seconds = beat, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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
