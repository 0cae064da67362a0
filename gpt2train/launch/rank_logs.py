"""Log files of each rank, and stderr of native code.

logs/rank-3.log     log lines of this rank, with time (UTC), level and attempt (0, then 1 after a restart …)
logs/rank-3.err     stderr of native code: warnings of gloo and NCCL, tracebacks of crashes
"""

import contextlib
import faulthandler
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ParamSpec

from gpt2train.store.files import write_error

P = ParamSpec("P")

log = logging.getLogger("gpt2train")

_LINE = re.compile(r"(\S+ \S+Z) ([A-Z]+) attempt \d+: (.*)")

_stderr_fd = 2  # file descriptor of the original stderr of the process


@dataclass(frozen=True)
class LogLine:
    """Line of a rank's log."""

    time: float  # seconds since 1970, by the clock of the rank's machine
    level: int  # level number of `logging`
    message: str


def read_line(text: str) -> LogLine | None:
    """Parse a line written by `log_to`; None for a line of a traceback and for a truncated line."""
    found = _LINE.fullmatch(text.rstrip("\n"))
    level = logging.getLevelNamesMapping().get(found[2]) if found else None
    if found is None or level is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1]).timestamp()
    except ValueError:
        return None
    return LogLine(moment, level, found[3])


def log_to(folder: Path, rank: int, screen: bool = True) -> None:
    """Send the log to `rank-N.log`, and on rank 0 also to stdout unless a launcher follows the file (`screen=False`).

    Raises:
        RunError: the disk is full.
        UserError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(folder / f"rank-{rank}.log", encoding="utf-8")
    except OSError as error:
        raise write_error(folder, error, "give another output") from error
    log.setLevel(logging.INFO)
    logging.raiseExceptions = False  # a full disk is reported by the failed save, not by a traceback per log line
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    form = logging.Formatter(f"%(asctime)s %(levelname)s attempt {attempt}: %(message)s")
    # UTC, since machines and readers may be in different time zones.
    form.converter, form.default_msec_format = time.gmtime, "%s.%03dZ"
    file.setFormatter(form)
    log.handlers = [file]
    if screen and rank == 0:
        lines = logging.StreamHandler(sys.stdout)
        lines.setFormatter(logging.Formatter("%(message)s"))
        # Errors are printed to stderr once, by the rank with the cause; records with a traceback go to the file only.
        lines.addFilter(lambda record: record.levelno < logging.ERROR and not record.exc_info)
        log.handlers.append(lines)
    log.propagate = False


def divert_native_stderr(folder: Path, rank: int) -> None:
    """Redirect stderr of native code, including tracebacks of crashes, to `rank-N.err`.

    When a machine is lost, gloo prints some 40 lines on every rank; the screen keeps the one line with the cause.
    Python's own `sys.stderr` is not redirected.
    """
    path = folder / f"rank-{rank}.err"
    global _stderr_fd
    sys.stderr.flush()
    _stderr_fd = os.dup(sys.stderr.fileno())
    try:
        with path.open("a") as file:
            os.dup2(file.fileno(), 2)
    except OSError as error:
        raise write_error(path, error, "give another output") from error
    sys.stderr = os.fdopen(_stderr_fd, "w", buffering=1, errors="backslashreplace")
    faulthandler.enable(file=2)


def drop_empty(folder: Path, rank: int) -> None:
    """Remove `rank-N.err` if it is empty."""
    path = folder / f"rank-{rank}.err"
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def quietly(write: Callable[P, object]) -> Callable[P, None]:
    """Wrap a function that logs or prints so that it never raises, for watchdogs and shutdown code.

    When a pipe has no reader any more, `print` raises BrokenPipeError, and rich, which Prefect uses for logging, raises
    SystemExit, which ends a thread silently. Callers should still act first and log afterwards.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        with contextlib.suppress(BaseException):
            write(*args, **kwargs)

    return call


def write_raw_stderr(text: str) -> None:
    """Write to the original stderr from an excepthook.

    Once a process group exists, torch wraps the excepthook and shows its output to `sys.stderr` only after it returns;
    our hook ends the process instead.
    """
    with contextlib.suppress(OSError):  # no reader any more; the process must end anyway
        os.write(_stderr_fd, text.encode(errors="backslashreplace"))
