"""Where a process of a training job writes what happens: `logs/rank-N.log`, and what native code says beside it.

logs/rank-3.log     every line of this rank, with time (UTC), level and attempt (0, then 1 after a restart …)
logs/rank-3.err     what C++ code wrote to stderr: gloo's and NCCL's warnings, the last words of a crash
"""

import contextlib
import faulthandler
import logging
import os
import re
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpt2train.files import write_error

log = logging.getLogger("gpt2train")

_LINE = re.compile(r"(\S+ \S+Z) ([A-Z]+) attempt (\d+): (.*)")

_screen = 2  # file descriptor of what was stderr when the process began


@dataclass(frozen=True)
class Line:
    """A line of a rank's log.

    Attributes:
        time: seconds since 1970, by the clock of the rank's machine.
        level: as `logging` numbers them.
        attempt: 0, then 1 after the first restart …
    """

    time: float
    level: int
    attempt: int
    message: str


def read_line(text: str) -> Line | None:
    """What `log_to` wrote; None for a line of a traceback, and for one that was cut."""
    found = _LINE.fullmatch(text.rstrip("\n"))
    level = logging.getLevelNamesMapping().get(found[2]) if found else None
    if found is None or level is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1]).timestamp()
    except ValueError:
        return None
    return Line(moment, level, int(found[3]), found[4])


class _Formatter(logging.Formatter):
    """UTC, since the machines of a job need not agree on a time zone, nor with who reads their logs."""

    converter = staticmethod(time.gmtime)
    default_msec_format = "%s.%03dZ"


def log_to(folder: Path, rank: int, screen: bool = True) -> None:
    """Send the log to `rank-N.log`, and on the first rank to the screen as well.

    Args:
        screen: False where somebody follows the logs (`train --quiet`), and would meet each line twice.

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
    logging.raiseExceptions = False  # a full disk is told once, by who saves there, not by a traceback a line
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    file.setFormatter(_Formatter(f"%(asctime)s %(levelname)s attempt {attempt}: %(message)s"))
    log.handlers = [file]
    if screen and rank == 0:
        lines = logging.StreamHandler(sys.stdout)
        lines.setFormatter(logging.Formatter("%(message)s"))
        lines.addFilter(lambda record: record.levelno < logging.ERROR)  # errors go to stderr, once
        log.handlers.append(lines)
    log.propagate = False


def divert_native_stderr(folder: Path, rank: int) -> None:
    """Send what native code writes to stderr, tracebacks of its crashes included, to `rank-N.err`.

    One lost machine makes every rank of gloo print some 40 lines; the screen keeps the one line that tells the cause.
    Python's own `sys.stderr` stays where it was.
    """
    path = folder / f"rank-{rank}.err"
    global _screen
    sys.stderr.flush()
    _screen = os.dup(sys.stderr.fileno())
    try:
        with path.open("a") as file:
            os.dup2(file.fileno(), 2)
    except OSError as error:
        raise write_error(path, error, "give another output") from error
    sys.stderr = os.fdopen(_screen, "w", buffering=1, errors="backslashreplace")
    faulthandler.enable(file=2)


def drop_empty(folder: Path, rank: int) -> None:
    """Remove `rank-N.err` when nothing was written to it."""
    path = folder / f"rank-{rank}.err"
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def last_words(text: str) -> None:
    """Write to the screen from an excepthook.

    torch puts a hook of its own around ours, once there is a process group, and shows what ours writes to
    `sys.stderr` only after it returns; ours ends the process.
    """
    os.write(_screen, text.encode(errors="backslashreplace"))
