"""torchrun that leaves no orphan, passes SIGTERM on gently and tells a failure in one line.

    python -m gpt2train.launch --parent PID -- --nproc-per-node 2 -m gpt2train.train --config run.toml

What follows `--` are torchrun's own arguments. With plain torchrun `kill -9` of the launcher's parent would leave
torchrun, and `kill -9` of torchrun its ranks; here each ends with its parent. SIGTERM and Ctrl-C reach the ranks as
SIGTERM, and the launcher waits until they have saved. The exit code is that of the rank that failed first: 2 for a
user's mistake, 1 else, 0 when all ended well.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import psutil

from gpt2train.lifeline import LAUNCHER, LOST_CONTACT, die_with_parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun in this process; the exit code."""
    parser = argparse.ArgumentParser(prog="gpt2train.launch", description="Run torchrun and leave no orphans.")
    parser.add_argument("--parent", type=int, help="process whose end ends the job; without it, that of the caller")
    parser.add_argument("torchrun", nargs=argparse.REMAINDER, help="-- and torchrun's arguments")
    options = parser.parse_args(argv)
    arguments = options.torchrun[1:] if options.torchrun[:1] == ["--"] else options.torchrun
    if not arguments:
        parser.error("torchrun's arguments are missing after --")
    if options.parent is not None:
        die_with_parent(options.parent)

    from torch.distributed import run  # 1.5 s: after the lifeline
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(_threads(run.parse_args(arguments).nproc_per_node)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its table of failures; we give a line
    stop = _PassOn()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        # torchrun keeps its hands off these two signals: it would kill the ranks 30 s into a save.
        run.main(["--signals-to-handle=SIGHUP,SIGQUIT", *arguments])
    except ChildFailedError as error:
        return _tell({rank: failure.exitcode for rank, failure in error.failures.items()}, stop.came)
    return 0


class _PassOn:
    """Sends SIGTERM to the ranks, which save and end; the launcher ends when they have."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        ranks = psutil.Process().children()
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.terminate()
        if not ranks:
            sys.exit(128 + signal.SIGTERM)


def _threads(processes: str) -> int:
    """Cores for each rank; torchrun by itself gives one and a warning."""
    from torch.distributed.run import determine_local_world_size

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // determine_local_world_size(processes))


def _tell(codes: dict[int, int], stopped: bool) -> int:
    """The exit code for ranks that failed, and a line where no rank could print its own."""
    if stopped and set(codes.values()) <= {-signal.SIGTERM}:
        print("stopped before training began", file=sys.stderr)
        return 128 + signal.SIGTERM
    for rank, code in sorted(codes.items(), key=lambda item: (_weight(item[1]), item[0])):
        if code in (1, 2):
            return code
        if code == LOST_CONTACT:
            print(f"error: rank {rank} lost contact with another process; see its log", file=sys.stderr)
        elif code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            print(f"error: rank {rank} was ended by {name}{hint}; run again to go on", file=sys.stderr)
        else:
            print(f"error: rank {rank} ended with exit code {code}", file=sys.stderr)
        break
    return 1


def _weight(code: int) -> int:
    """Which of several failures is the cause: a told error, a signal, then what follows from another's failure."""
    order = [2, 1, -signal.SIGKILL]
    follows = [LOST_CONTACT, -signal.SIGTERM]
    return order.index(code) if code in order else 10 + follows.index(code) if code in follows else 5


if __name__ == "__main__":
    sys.exit(main())
