"""Init process (PID 1) of a container or service that exits only after all other processes have ended.

    python -m gpt2train.launch.container_init prefect worker start --pool gpt2train --type process

When PID 1 of a container exits, all other processes are killed at once. A Prefect worker that gets SIGTERM kills its
flows and exits within a second, while their training jobs still write a checkpoint; or sometimes it waits for flows
that have hours to go, until it gets a second signal. This init process forwards SIGTERM and SIGINT to its command,
repeatedly every few seconds until the command has ended, reaps orphaned processes, and exits after the last one. The
exit code is that of the command.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36
RESIGNAL_SECONDS = 5


def main(command: list[str]) -> int:
    """Run a command, wait until it and all orphaned descendants have ended, and return its exit code."""
    # Needed outside a container only: there, orphans are reparented to PID 1 anyway.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command)
    code: int | None = None
    pending = signal.SIGTERM

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal pending
        pending = pending if number == signal.SIGALRM else signal.Signals(number)
        if code is None:  # once it is reaped, its process id may belong to another process
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, pending)
                signal.alarm(RESIGNAL_SECONDS)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, forward)
    with contextlib.suppress(ChildProcessError):  # raised when no child is left
        while True:
            ended, status = os.wait()
            if ended == child.pid:
                code = os.waitstatus_to_exitcode(status)
    assert code is not None  # the command is one of the children
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m gpt2train.launch.container_init COMMAND …")
    sys.exit(main(sys.argv[1:]))
