"""Terminal output: one line per step, a progress bar on a terminal, no tracebacks."""

import logging
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flows.ui.progress import StageProgress, format_duration
from tasks.core.step import Manifest

log = logging.getLogger("gpt2train")


class BrokenPipeSafeConsole(Console):
    """Console that goes quiet on a broken pipe (a killed worker, `| head`); rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Discard all further output."""
        self.quiet = True


console = BrokenPipeSafeConsole(stderr=True, highlight=False, soft_wrap=True)


class LineFormatter(logging.Formatter):
    """Formatter of one line: the message, with the level from WARNING up, never a traceback.

    `--debug` prints the traceback once, at the end.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{level}{record.getMessage()}"


class ConsoleHandler(logging.Handler):
    """Handler that prints above a running progress bar instead of into it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        console.print(self.format(record), markup=False)


class StepProgress:
    """Progress bar of a stage's batches; no output unless the console is a terminal."""

    def __init__(self, label: str, progress: StageProgress) -> None:
        self.progress = progress
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description:<14}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(label, total=progress.total, rate="", left="")
            self._bar.start()

    def update(self) -> None:
        """Redraw the bar with the current progress."""
        if self._bar is not None:
            now = time.monotonic()
            left = self.progress.left(now)
            # Not rich's own estimate: it uses only the last few updates, and batches in flight end in bursts.
            shown = "" if left is None else f"{format_duration(left)} left"
            self._bar.update(self._task, completed=self.progress.done, rate=self.progress.rate(now), left=shown)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


def step_line(manifest: Manifest, seconds: float | None) -> str:
    """Format a finished step as one line: rows in, rows kept, seconds or `cached` for None, dropped rows by reason."""
    outcome = manifest.outcome
    counts = f"{outcome.seen:>7,} -> {outcome.kept:>7,}" if outcome.seen else " " * 18
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in outcome.reasons.items())
    took = "cached" if seconds is None else f"{seconds:.1f} s"
    return f"{manifest.step:<14}{counts}  {took:>8}  {reasons}".rstrip()
