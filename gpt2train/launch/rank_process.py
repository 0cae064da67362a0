"""Process-level handling of a rank: signals, one-line errors, exit codes and the lock of the run folder."""

import contextlib
import logging
import os
import re
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

from gpt2train.errors import RunError, UserError
from gpt2train.launch import hang_report, rank_store
from gpt2train.launch.exit_codes import LAUNCHER, LOST_CONTACT, PEER_HUNG, RESUMES
from gpt2train.launch.process_env import ProcessEnv
from gpt2train.launch.rank_logs import write_raw_stderr
from gpt2train.store.files import make_folder, write_error
from gpt2train.store.process import WARNING_SIGNALS, die_with_parent, end_process, hangup_signals

log = logging.getLogger("gpt2train")

INTERFACE_REMEDY = "set GLOO_SOCKET_IFNAME to the network interface that reaches the other machines"
# Parts of errors at a limit, and the limit; gloo has a socket for each pair of ranks and group.
LIMITS = {
    "Too many open files": "ulimit -n",
    "Resource temporarily unavailable": "of processes: ulimit -u, or that of the container",
    "can't start new thread": "of processes: ulimit -u, or that of the container",
}
SIGNAL_DEBOUNCE_SECONDS = 1.0  # seconds within which several signals count as one
LOCK_SECONDS = 1.0  # a job that was just killed may need a moment to release the lock


class StopRequest:
    """Stop request, set by SIGTERM, Ctrl-C, a scheduler's warning or a closed terminal, and checked after every step.

    A second signal ends the process at once, unless it is another warning.

    Signals within a second count as one, since a terminal, a scheduler and a launcher may each send one.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0

    def install(self) -> None:
        """Install the signal handlers of this process."""
        signal.signal(signal.SIGTERM, self._on_signal)
        # These reach the whole process group, or every process of the job; the launcher forwards them as SIGTERM.
        for number in (signal.SIGINT, *WARNING_SIGNALS, *hangup_signals()):
            signal.signal(number, signal.SIG_IGN if LAUNCHER in os.environ else self._on_signal)

    @contextlib.contextmanager
    def end_at_once(self, env: ProcessEnv) -> Iterator[None]:
        """Let a signal end the process while it waits for the others, since nothing is to be saved yet.

        A handler of Python would run only when torch's wait is over, minutes later. Under this project's launcher,
        which starts all ranks and reads their exit codes, signals are as in the training.
        """
        numbers = (signal.SIGTERM, signal.SIGINT, *WARNING_SIGNALS, *hangup_signals())
        numbers = () if env.world == 1 or LAUNCHER in os.environ else numbers
        handlers = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
        if handlers and self.requested:  # before the wait
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._since = True, time.monotonic()
        elif number not in WARNING_SIGNALS and time.monotonic() - self._since > SIGNAL_DEBOUNCE_SECONDS:
            raise KeyboardInterrupt


def follow_launcher() -> None:
    """Under torchrun, end when it dies. A process that was started by hand may outlive its shell."""
    if LAUNCHER in os.environ:
        die_with_parent(int(os.environ[LAUNCHER]))
    elif dist.is_torchelastic_launched():
        die_with_parent()


def exit_code(error: UserError | RunError, env: ProcessEnv, debug: bool) -> int:
    """Report an expected error, once on stderr and in every rank's log, and return the exit code for it.

    Rank 0 prints it. Before the process group exists, the first rank of each machine prints it, since the others may
    not have the error.
    """
    if log.handlers:
        log.error("error: %s", error, exc_info=debug)
    if env.rank == 0 or (not dist.is_initialized() and env.local_rank == 0):
        print(f"error: {error}", file=sys.stderr, flush=True)
        if debug:
            traceback.print_exception(error)
    return 2 if isinstance(error, UserError) else 1


def exit_without_teardown(code: int) -> NoReturn:
    """End the process after its work is done and on disk, without the teardown of the interpreter.

    Threads of gloo can outlive their process group and run into a destructor that calls `std::terminate`: 2 of 12
    finished runs of two ranks ended with SIGABRT.
    """
    end_process(code)


def install_excepthook(rank: int, debug: bool) -> None:
    """Make an unexpected error print one line, log its traceback and end the process without waiting for other ranks.

    A regular exit could wait for the other ranks, which wait for this one. If contact was lost because a rank hangs,
    one of the others names it; if a rank died, it or the launcher reports that.
    """

    def hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        log_file = ""
        code, line = _diagnose(error, tb, rank)
        if log.handlers:
            level = logging.ERROR if line else logging.WARNING  # without a line, it is a consequence, not the cause
            log.log(level, line or f"the process ends with {kind.__name__}", exc_info=(kind, error, tb))
            log_file = f"; the traceback is in {getattr(log.handlers[0], 'baseFilename', 'its log')}"
        if line:
            write_raw_stderr(f"error: {line}{log_file}\n")
        if debug:
            write_raw_stderr("".join(traceback.format_exception(kind, error, tb)))
        logging.shutdown()
        os._exit(code)

    sys.excepthook = hook
    threading.excepthook = _log_thread_error


def _log_thread_error(ended: threading.ExceptHookArgs) -> None:
    """Log the error that ended a thread, with its traceback in the file only; its caller reports the failure."""
    if ended.exc_value is not None and ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread else "a thread"
        error = (ended.exc_type, ended.exc_value, ended.exc_traceback)
        log.warning("%s ended with %s: %s", name, ended.exc_type.__name__, ended.exc_value, exc_info=error)


def _diagnose(error: BaseException, tb: TracebackType | None, rank: int) -> tuple[int, str | None]:
    """Exit code and message of an unexpected error; no message if another process reports the cause."""
    if isinstance(error, KeyboardInterrupt):
        line = f"killed by a second signal; steps after the last checkpoint are lost{RESUMES}"
        return 130, None if rank else line
    for symptom, limit in LIMITS.items():
        if symptom in str(error):
            return 1, f"rank {rank}: {type(error).__name__}: {error}; raise the limit ({limit}) and run again"
    if not is_lost_contact(error):
        return 1, f"rank {rank}: {type(error).__name__}: {error}"
    timed_out = "timed out" in str(error).lower()
    with contextlib.suppress(Exception):  # a report must not hide the failure
        rank_store.publish_failure(hang_report.failed_state(error, tb), timed_out)
    hung = rank_store.hung_ranks(timed_out)
    if hung:
        code = PEER_HUNG if LAUNCHER in os.environ else 1
        # gloo reports any error of a connection as a timeout, after four attempts without a pause between them.
        if refused := re.search(r"timed out connecting: (.*)", str(error)):
            return code, f"rank {rank} cannot connect to {rank_store.ranks(hung)} ({refused[1]}); {INTERFACE_REMEDY}"
        what = f"{rank_store.ranks(hung)} gave no sign of life while rank {rank} waited"
        return code, f"{what}; check the machine{_report(rank_store.states())}"
    if hung is not None and len(states := rank_store.states()) > 1:
        code = PEER_HUNG if LAUNCHER in os.environ else 1
        return code, f"all ranks of {len(states)} wait, in collectives that do not match{_report(states)}"
    return LOST_CONTACT, None if LAUNCHER in os.environ else f"rank {rank}: lost contact with another process"


def _report(states: list[hang_report.RankState]) -> str:
    """Summary of what each rank does in a hang, and the file that has their stacks, as the end of a line."""
    if not states or not log.handlers:
        return ""
    try:
        path = hang_report.write_report(states, Path(log.handlers[0].baseFilename).parent)  # type: ignore[attr-defined]
    except OSError as error:
        return f": {hang_report.summary(states)} (no file with the stacks: {error.strerror})"
    return f": {hang_report.summary(states)}; stacks: {path}"


def is_lost_contact(error: BaseException) -> bool:
    """Return True if a collective failed because a peer is gone. gloo and file stores raise plain RuntimeErrors."""
    names = ("gloo", "Wait timeout", "Timeout waiting for key")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(name in str(error) for name in names)
    )


@contextlib.contextmanager
def lock_run_folder(run: Path) -> Iterator[None]:
    """Hold the lock of the run folder.

    Raises:
        RunError: the disk is full.
        UserError: another job holds the lock, or the folder cannot be written.
    """
    try:
        make_folder(run)
        lock = filelock.FileLock(run / ".lock").acquire(timeout=LOCK_SECONDS)
    except filelock.Timeout as error:
        raise UserError(f"another training job uses {run}; wait for it, stop it, or give another output") from error
    except OSError as error:
        raise write_error(run, error, "give another output") from error
    with lock:
        yield
