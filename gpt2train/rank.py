"""What every process of a training job does around its work: signals, one-line errors, one job a folder."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

import filelock
import torch.distributed as dist

from gpt2train.cluster import Seat
from gpt2train.errors import RunError, UserError
from gpt2train.files import write_error
from gpt2train.lifeline import LAUNCHER, LOST_CONTACT, SILENT, die_with_parent
from gpt2train.logs import last_words
from gpt2train.parallel import meeting

log = logging.getLogger("gpt2train")

ONE_WISH = 1.0  # seconds within which several signals count as one
LOCK_SECONDS = 1.0  # a job that was killed just now may need a moment to let go


class StopRequest:
    """Set by SIGTERM or Ctrl-C; the loop looks at it after every step. A second one ends the process at once.

    Signals that come within a second are one wish: a terminal, a scheduler and a launcher may each send theirs.
    """

    def __init__(self) -> None:
        self.asked = False
        self._since = 0.0

    def install(self) -> None:
        """Take over both signals of this process."""
        signal.signal(signal.SIGTERM, self._ask)
        # Ctrl-C reaches the whole process group; the launcher passes it on as SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN if LAUNCHER in os.environ else self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._since = True, time.monotonic()
        elif time.monotonic() - self._since > ONE_WISH:
            raise KeyboardInterrupt


def follow_launcher() -> None:
    """Under torchrun: end when it ends. A process that a person started by hand may outlive its shell."""
    if LAUNCHER in os.environ:
        die_with_parent(int(os.environ[LAUNCHER]))
    elif dist.is_torchelastic_launched():
        die_with_parent()


def exit_code(error: UserError | RunError, seat: Seat, debug: bool) -> int:
    """Tell a foreseen error, on one screen and in every rank's log, and give the exit code for it.

    The first rank tells it. Before the ranks have met each machine tells for itself, since others may not know.
    """
    if log.handlers:
        log.error("error: %s", error, exc_info=debug)
    if seat.rank == 0 or (not dist.is_initialized() and seat.local == 0):
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
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read it may be gone: the work is done all the same
            stream.flush()
    os._exit(code)


def end_at_once_on_bugs(rank: int, debug: bool) -> None:
    """Let an unforeseen error print one line, log its traceback and end the process without waiting for anyone.

    Leaving in the usual way could wait for the other ranks, which wait for this one. When contact was lost since a
    rank hangs, one of the others names it; when a rank died, its own line or the launcher's does.
    """

    def hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        where = ""
        code, line = _meaning(kind, error, rank)
        if log.handlers:
            level = logging.ERROR if line else logging.WARNING  # without a line it is no cause, but what followed
            log.log(level, line or f"the process ends by {kind.__name__}", exc_info=(kind, error, tb))
            where = f"; the traceback is in {getattr(log.handlers[0], 'baseFilename', 'its log')}"
        if line:
            last_words(f"error: {line}{where}\n")
        if debug:
            last_words("".join(traceback.format_exception(kind, error, tb)))
        logging.shutdown()
        os._exit(code)

    sys.excepthook = hook
    threading.excepthook = _note_thread


def _note_thread(ended: threading.ExceptHookArgs) -> None:
    """Log how a thread ended, the traceback in the file alone. Whoever waits for its work tells what it means."""
    if ended.exc_value is not None and ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread else "a thread"
        error = (ended.exc_type, ended.exc_value, ended.exc_traceback)
        log.warning("%s ended by %s: %s", name, ended.exc_type.__name__, ended.exc_value, exc_info=error)


def _meaning(kind: type[BaseException], error: BaseException, rank: int) -> tuple[int, str | None]:
    """The exit code and the line for an unforeseen error; no line where another process has the better one."""
    if issubclass(kind, KeyboardInterrupt):
        return (
            130,
            "ended at once by a second signal; what came after the last checkpoint is lost" if not rank else None,
        )
    if not is_lost_contact(error):
        return 1, f"rank {rank}: {kind.__name__}: {error}"
    if silent := meeting.silent("timed out" in str(error).lower()):
        code = SILENT if LAUNCHER in os.environ else 1
        return code, f"{meeting.ranks(silent)} gave no sign of life while rank {rank} waited; see the machine's state"
    return LOST_CONTACT, None if LAUNCHER in os.environ else f"rank {rank}: lost contact with another process"


def is_lost_contact(error: BaseException) -> bool:
    """Whether a collective failed because a peer is gone. gloo raises plain RuntimeErrors that name its sources."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextlib.contextmanager
def only_job_in(run: Path) -> Iterator[None]:
    """Hold the run folder.

    Raises:
        RunError: the disk is full.
        UserError: another job holds it, or the folder cannot be written.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(run / ".lock", timeout=LOCK_SECONDS)
        lock.acquire()
    except filelock.Timeout as error:
        raise UserError(f"another training job works in {run}; wait for it, stop it, or give another output") from error
    except OSError as error:
        raise write_error(run, error, "give another output") from error
    try:
        yield
    finally:
        lock.release()
