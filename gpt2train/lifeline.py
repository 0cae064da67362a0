"""No orphans: a child process that ends when its parent does, however the parent ends.

`kill -9` runs no handler, so each child watches its parent itself: by `prctl(PR_SET_PDEATHSIG)` where the kernel has
it, by polling the parent's process id elsewhere.
"""

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5

# Set by gpt2train.launch for its ranks: its process id. Ranks then leave it to the launcher to say that one was lost.
LAUNCHER = "GPT2TRAIN_LAUNCHER"
LOST_CONTACT = 3  # exit code of a rank that failed only because another one did
SILENT = 4  # exit code of a rank that found another one hung, and told so


def die_with_parent(parent: int | None = None, sig: signal.Signals = signal.SIGKILL) -> None:
    """End this process as soon as its parent ends; with another signal than SIGKILL, as its handler does.

    The kernel watches the parent *thread* that made this process; callers keep that thread alive as long as the child.

    Args:
        parent: process id of the parent as the parent gave it; None takes the present one. When the parent is already
            gone the process ends at once, which closes the race between fork and this call.
        sig: what this process is sent on the parent's death.
    """
    expected = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    else:
        threading.Thread(target=_poll, args=(expected, sig), daemon=True).start()
    if os.getppid() != expected:
        os._exit(1)


def _poll(parent: int, sig: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), sig)
