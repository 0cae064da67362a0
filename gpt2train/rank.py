"""What every process of a training job does around its work: logs, signals, one-line errors, one job a folder."""

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

import filelock
import torch.distributed as dist

from gpt2train.errors import RunError, UserError
from gpt2train.lifeline import LAUNCHER, LOST_CONTACT, die_with_parent

log = logging.getLogger("gpt2train")

LOCK_SECONDS = 1.0  # a job that was killed just now may need a moment to let go


class StopRequest:
    """Set by SIGTERM or Ctrl-C; the loop looks at it after every step. A second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """Take over both signals of this process."""
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def follow_launcher() -> None:
    """Under torchrun: end when it ends. A process that a person started by hand may outlive its shell."""
    if LAUNCHER in os.environ:
        die_with_parent(int(os.environ[LAUNCHER]))
    elif dist.is_torchelastic_launched():
        die_with_parent()


def log_to(folder: Path, rank: int) -> None:
    """Send the log to `rank-N.log`, and on the first rank to the screen as well.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(folder / f"rank-{rank}.log", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; give another output") from error
    log.setLevel(logging.INFO)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.handlers = [file]
    if rank == 0:
        screen = logging.StreamHandler(sys.stdout)
        screen.setFormatter(logging.Formatter("%(message)s"))
        screen.addFilter(lambda record: record.levelno < logging.ERROR)  # errors go to stderr, once
        log.handlers.append(screen)
    log.propagate = False


def exit_code(error: UserError | RunError, rank: int, debug: bool) -> int:
    """Tell a foreseen error, on the first rank's screen and in every rank's log, and give the exit code for it."""
    if log.handlers:
        log.error("error: %s", error, exc_info=debug)
    if rank == 0:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if debug:
            traceback.print_exception(error)
    return 2 if isinstance(error, UserError) else 1


def leave(code: int) -> NoReturn:
    """End the process when its work is done and on the disk, without taking the interpreter apart.

    Threads of gloo can outlive their process group, and meet a destructor at exit that calls `std::terminate`: 2 of
    12 finished runs of two ranks ended by SIGABRT so.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_at_once_on_bugs(rank: int, debug: bool) -> None:
    """Let an unforeseen error print one line, log its traceback and end the process without waiting for anyone.

    Leaving in the usual way could wait for the other ranks, which wait for this one.
    """

    def hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        lost = is_lost_contact(error)
        where = ""
        if log.handlers:
            log.error("the process ends", exc_info=(kind, error, tb))
            where = f"; the traceback is in {getattr(log.handlers[0], 'baseFilename', 'its log')}"
        if not (lost and LAUNCHER in os.environ):
            what = "lost contact with another process" if lost else f"{kind.__name__}: {error}"
            print(f"error: rank {rank}: {what}{where}", file=sys.stderr, flush=True)
        if debug:
            traceback.print_exception(kind, error, tb)
        logging.shutdown()
        os._exit(LOST_CONTACT if lost else 1)

    sys.excepthook = hook


def is_lost_contact(error: BaseException) -> bool:
    """Whether a collective failed because a peer is gone. gloo raises plain RuntimeErrors that name its sources."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextlib.contextmanager
def only_job_in(run: Path) -> Iterator[None]:
    """Hold the run folder.

    Raises:
        UserError: another job holds it, or the folder cannot be written.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(run / ".lock", timeout=LOCK_SECONDS)
        lock.acquire()
    except filelock.Timeout as error:
        raise UserError(f"another training job works in {run}; wait for it, stop it, or give another output") from error
    except OSError as error:
        raise UserError(f"cannot write the run folder {run}: {error.strerror}; give another output") from error
    try:
        yield
    finally:
        lock.release()
