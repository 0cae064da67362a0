"""Terminal output: one line per step and per log record, no tracebacks."""

import logging

from gpt2train.store.manifest import Manifest
from gpt2train.store.progress import console

log = logging.getLogger("gpt2train")


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


def step_line(manifest: Manifest, seconds: float | None) -> str:
    """Format a finished step as one line: rows in, rows kept, seconds or `cached` for None, dropped rows by reason."""
    outcome = manifest.outcome
    counts = f"{outcome.seen:>7,} -> {outcome.kept:>7,}" if outcome.seen else " " * 18
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in outcome.reasons.items())
    took = "cached" if seconds is None else f"{seconds:.1f} s"
    return f"{manifest.step:<14}{counts}  {took:>8}  {reasons}".rstrip()
