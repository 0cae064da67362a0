"""Progress of long work: done of total, rate and time left, as text and as a bar on a terminal."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpt2train.store.counts import count_of, plural


class BrokenPipeSafeConsole(Console):
    """Console that goes quiet on a broken pipe (a killed worker, `| head`); rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Discard all further output."""
        self.quiet = True


console = BrokenPipeSafeConsole(stderr=True, highlight=False, soft_wrap=True)


@dataclass
class StageProgress:
    """Batches and rows done of a stage."""

    unit: str  # name of a row, in the singular
    total: int  # number of batches; 0 if unknown
    done: int = 0  # number of finished batches
    rows: int = 0  # rows done, also of batches in flight that report them; 0 if the stage counts none
    all_rows: int = 0  # total number of rows; 0 if unknown
    started: float = field(default_factory=time.monotonic)  # seconds on the monotonic clock

    def rate(self, now: float) -> str:
        """Format the rows per second as `1,234 pages/s`; empty before any row is done."""
        seconds = now - self.started
        if not self.rows or seconds <= 0:
            return ""
        value = self.rows / seconds
        return f"{value:,.{0 if value >= 10 else 1}f} {plural(self.unit)}/s"

    @property
    def share(self) -> float:
        """Fraction done, 0 to 1: of the rows if their total is known, else of the batches."""
        return self.rows / self.all_rows if self.all_rows else self.done / max(self.total, 1)

    def left(self, now: float) -> float | None:
        """Estimate the seconds until the end at the average rate so far; None before anything is done."""
        return (now - self.started) * (1 - self.share) / self.share if self.share else None

    def summary(self, now: float) -> str:
        """Summarize done of total, rate and time left in one line."""
        parts = [f"{self.done:,} of {count_of(self.total, 'batch')}"]
        if self.all_rows:
            parts.append(f"{self.rows:,} of {count_of(self.all_rows, self.unit)}")
        elif self.rows:
            parts.append(count_of(self.rows, self.unit))
        parts += filter(None, [self.rate(now)])
        left = self.left(now)
        if self.done == self.total:
            parts.append(f"took {format_duration(now - self.started)}")
        elif left is not None:
            parts.append(f"{format_duration(left)} left")
        return ", ".join(parts)


class ProgressBar:
    """Progress bar of a stage; no output unless the console is a terminal."""

    def __init__(self, label: str, progress: StageProgress) -> None:
        self._progress = progress
        self._bar = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=progress.total or None, rate="", left="")
        self._bar.start()

    def update(self) -> None:
        """Redraw the bar with the current progress."""
        now, progress = time.monotonic(), self._progress
        left = progress.left(now)
        # Not rich's own estimate: it uses only the last few updates, and batches in flight end in bursts.
        shown = "" if left is None else f"{format_duration(left)} left"
        total = progress.total or None
        self._bar.update(self._task, completed=progress.done, total=total, rate=progress.rate(now), left=shown)

    def close(self) -> None:
        """Remove the bar."""
        if not self._bar.disable:  # otherwise rich would print an empty line
            self._bar.stop()


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar for a block of work, which calls the function `(done, total)` that it gets."""
    progress = StageProgress("", 0)
    bar = ProgressBar(label, progress)

    def report(done: int, total: int) -> None:
        progress.done, progress.total = done, total
        bar.update()

    with contextlib.closing(bar):
        yield report


def format_duration(seconds: float) -> str:
    """Format a duration as 1:05 or 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
