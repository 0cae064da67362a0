"""Time that a training step takes."""

import contextlib
import time
from collections.abc import Iterator


class StepTimer:
    """Timer of steps; validation and saves do not count."""

    def __init__(self) -> None:
        self._started_at = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap; the next step begins now."""
        seconds = time.perf_counter() - self._started_at
        self._started_at += seconds
        return seconds

    def restart(self) -> None:
        """Begin the step now."""
        self._started_at = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block."""
        paused_at = time.perf_counter()
        yield
        self._started_at += time.perf_counter() - paused_at
