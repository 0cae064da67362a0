"""What a person sees in the terminal: a line a step, a progress bar while they watch, no tracebacks."""

import logging
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flows.show.pace import Pace, clock
from tasks.steps import Manifest

log = logging.getLogger("gpt2train")


class PatientConsole(Console):
    """Goes on in silence when whoever read it is gone: a killed worker, `| head`. Rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True


console = PatientConsole(stderr=True, highlight=False, soft_wrap=True)


class LineFormatter(logging.Formatter):
    """The message alone; level named from WARNING up; never a traceback (`--debug` prints it once, at the end)."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{level}{record.getMessage()}"


class ConsoleHandler(logging.Handler):
    """Prints above a running progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        console.print(self.format(record), markup=False)


class StepProgress:
    """A progress bar for the batches of one stage; silent where nobody watches (a pipe, a log file)."""

    def __init__(self, label: str, pace: Pace) -> None:
        self.pace = pace
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
            self._task = self._bar.add_task(label, total=pace.total, rate="", left="")
            self._bar.start()

    def update(self) -> None:
        """Show how far the stage has come."""
        if self._bar is not None:
            now = time.monotonic()
            left = self.pace.left(now)
            # Not rich's own estimate: it looks at the last few updates, and batches in flight end in bursts.
            shown = "" if left is None else f"{clock(left)} left"
            self._bar.update(self._task, completed=self.pace.done, rate=self.pace.rate(now), left=shown)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


def step_line(manifest: Manifest, seconds: float | None) -> str:
    """One line about a finished step: what came in, what went on, why the rest did not; None seconds = cached."""
    outcome = manifest.outcome
    flow = f"{outcome.seen:>7,} -> {outcome.kept:>7,}" if outcome.seen else " " * 18
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in outcome.reasons.items())
    took = "cached" if seconds is None else f"{seconds:.1f} s"
    return f"{manifest.step:<14}{flow}  {took:>8}  {reasons}".rstrip()
