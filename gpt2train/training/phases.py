"""Phases of a training step, and the seconds of each on this process.

    data           waiting for the next batch, and its copy to the device
    forward        forward passes
    backward       backward passes; of a pipeline also its schedule between the passes
    communication  waiting for other processes: collectives, and the neighbours in a pipeline
    optimizer      gradient norm, clipping and update
    other          the rest of the step

On a CPU they are times of the clock. A phase within another one is not counted twice: waiting for a collective in the
backward pass is communication.

On a GPU they are times of its stream, from CUDA events that are recorded where a phase begins and read when the
statistics of the step have arrived, so that the host never waits for them. A step ends with its gradient norm there, so
that `optimizer` has the update of the previous step. There is no `communication`: collectives run beside the passes on
streams of their own, and what the passes wait for them is part of the passes.
"""

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch

PHASES = ("data", "forward", "backward", "communication", "optimizer", "other")

M = TypeVar("M", bound=Callable[..., Any])


class PhaseTimer:
    """Timer of the phases on a CPU; only the thread that creates it counts."""

    phases: tuple[str, ...] = PHASES

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._paused = False
        self._current = "other"
        self.restart()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time of the block to a phase."""
        if self._paused or threading.get_ident() != self._thread:
            yield
            return
        before = self._current
        self._begin(phase)
        try:
            yield
        finally:
            self._begin(before)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block."""
        with self("paused"):
            self._paused = True
            try:
                yield
            finally:
                self._paused = False

    def cut(self) -> None:
        """Mark the end of the step on the stream of a GPU; without an effect on a CPU."""

    def lap(self) -> dict[str, float]:
        """Seconds of each phase since the last lap; the next step begins now."""
        self._begin(self._current)
        seconds = {phase: self._seconds[phase] for phase in self.phases}
        self.restart()
        return seconds

    def restart(self) -> None:
        """Begin the step now."""
        self._seconds = dict.fromkeys((*self.phases, "paused"), 0.0)
        self._since = time.perf_counter()

    def _begin(self, phase: str) -> None:
        now = time.perf_counter()
        self._seconds[self._current] += now - self._since
        self._current, self._since = phase, now


class StreamPhaseTimer(PhaseTimer):
    """Timer of the phases on the current stream of a GPU."""

    phases = tuple(phase for phase in PHASES if phase != "communication")

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []
        # Phases of the present step, and of the step before, with the events of their ends.
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._cut: list[tuple[str, torch.cuda.Event]] = []
        super().__init__()

    def cut(self) -> None:
        """Mark the end of the step on the stream."""
        self._begin(self._current)
        self._cut, self._marks = self._marks, self._marks[-1:]

    def lap(self) -> dict[str, float]:
        """Seconds of each phase of the step that the last `cut` ended; the device must have passed it."""
        seconds = dict.fromkeys((*self.phases, "paused"), 0.0)
        for (_, begin), (phase, end) in itertools.pairwise(self._cut):
            seconds[phase] += begin.elapsed_time(end) / 1e3
        self._free += [event for _, event in self._cut[:-1]]
        self._cut = []
        return {phase: seconds[phase] for phase in self.phases}

    def restart(self) -> None:
        """Without an effect: between the steps the device computes on."""

    def _begin(self, phase: str) -> None:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((self._current, event))
        self._current = phase


def phase_timer(device: torch.device) -> PhaseTimer:
    """Return a timer of the phases on a device."""
    return StreamPhaseTimer() if device.type == "cuda" else PhaseTimer()


def in_phase(phase: str) -> Callable[[M], M]:
    """Decorate a method, to count its time to a phase of `self.phases`."""

    def decorate(method: M) -> M:
        @functools.wraps(method)
        def timed(self: Any, *arguments: Any, **keywords: Any) -> Any:
            with self.phases(phase):
                return method(self, *arguments, **keywords)

        return cast(M, timed)

    return decorate


def phase_columns(seconds: dict[str, float]) -> dict[str, float]:
    """Columns of metrics.jsonl: `data_seconds`, `forward_seconds` …, to the microsecond."""
    return {f"{phase}_seconds": round(value, 6) for phase, value in seconds.items()}
