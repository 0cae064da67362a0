"""The first process of a container or a service: ends when all have, so that what saves may save.

    python -m gpt2train.pid1 prefect worker start --pool gpt2train --type process

The end of a container's first process is the end of all others, at once. A Prefect worker that is asked to stop kills
its flows and is gone within a second, while their trainings still write a checkpoint; or, now and then, it waits for
flows that have hours to go, until it is asked again. This one passes SIGTERM and SIGINT on to its command, again every
few seconds until the command has ended, buries processes that nobody waits for, and stays until the last one has ended.
The exit code is the command's.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36
AGAIN_SECONDS = 5


def main(command: list[str]) -> int:
    """Run a command and stay until it and all that it left behind have ended; its exit code."""
    # In a container orphans come here by themselves.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command)
    code: int | None = None
    wish = signal.SIGTERM

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal wish
        wish = wish if number == signal.SIGALRM else signal.Signals(number)
        if code is None:  # once it is buried its number may be another's
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, wish)
                signal.alarm(AGAIN_SECONDS)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, pass_on)
    with contextlib.suppress(ChildProcessError):  # no child is left
        while True:
            ended, status = os.wait()
            if ended == child.pid:
                code = os.waitstatus_to_exitcode(status)
    assert code is not None  # the command is one of the children
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m gpt2train.pid1 COMMAND …")
    sys.exit(main(sys.argv[1:]))
