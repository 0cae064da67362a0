"""End a child process when its parent dies, so that no orphans remain.

`kill -9` runs no handler, so each child watches its parent itself: by `prctl(PR_SET_PDEATHSIG)` on Linux, by polling
the parent's process id elsewhere.
"""

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5

# Process id of gpt2train.launch, set by it for its ranks. Ranks then leave the report of a lost rank to the launcher.
LAUNCHER = "GPT2TRAIN_LAUNCHER"
MULTIPLEXERS = {"TMUX", "STY"}  # environment variables of tmux and screen, whose terminals outlive a connection
CLOSING = "closing this terminal ends the run, which saves first; tmux or nohup keep it running"
USER_ERROR = 2  # exit code of a rank for a user's mistake
LOST_CONTACT = 3  # exit code of a rank that failed only because another one did
PEER_HUNG = 4  # exit code of a rank that detected and reported a hung rank
RESUMES = "; the same command resumes from the last checkpoint"  # end of the line of a training that was killed


def die_with_parent(parent: int | None = None, sig: signal.Signals = signal.SIGKILL) -> None:
    """Send this process a signal as soon as its parent dies.

    The kernel watches the parent *thread* that created this process; callers keep that thread alive as long as the
    child.

    The parent gives its own process id; by default it is the current parent's. If the parent is already gone, this
    process ends at once, which closes the race between fork and this call.
    """
    expected = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    else:
        threading.Thread(target=_poll, args=(expected, sig), daemon=True).start()
    if os.getppid() != expected:
        os._exit(1)


def hangup_signals() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, by which a closed terminal ends its processes, unless nohup or a scheduler has them ignore it."""
    return () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)


def ends_with_terminal() -> bool:
    """Return True if closing a terminal ends this process: it writes to one, and neither nohup nor tmux protects it.

    To be called before the process handles SIGHUP itself.
    """
    return sys.stdout.isatty() and bool(hangup_signals()) and not MULTIPLEXERS & os.environ.keys()


def _poll(parent: int, sig: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), sig)
