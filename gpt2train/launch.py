"""torchrun that leaves no orphan, passes SIGTERM on gently, restarts what is lost and tells a failure in one line.

    python -m gpt2train.launch -- --nproc-per-node 2 -m gpt2train.train --config run.toml
    python -m gpt2train.launch -- --nproc-per-node 8 --max-restarts 3 -m gpt2train.train --config run.toml
    srun --ntasks-per-node 1 python -m gpt2train.launch -- --nproc-per-node 8 -m gpt2train.train --config run.toml

What follows `--` are torchrun's own arguments; on several machines without Slurm, `--nnodes`, `--rdzv-backend c10d`,
`--rdzv-endpoint` and `--rdzv-id` among them, or `--node-rank` and `--master-addr`. With plain torchrun `kill -9` of the
launcher's parent would leave torchrun, and `kill -9` of torchrun its ranks; here each ends with its parent. SIGTERM and
Ctrl-C reach the ranks as SIGTERM, and the launcher waits until they have saved; a second one ends all at once. A lost
rank makes all start again from the last checkpoint, `--max-restarts` times; a user's mistake does not. The exit code is
that of the rank that failed first: 2 for a user's mistake, 1 else, 0 when all ended well. With `--complete RUN` it is
75 when all ended well but early, since one machine was asked to stop: a scheduler then starts the job again. `--lost 3`
gives a code of its own to what is worth another try, a process that was killed, cut off or hung. With `--grace 60` the
ranks save, within 60 s, even when the parent is killed.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import psutil

from gpt2train.cluster import find_seat
from gpt2train.errors import UserError
from gpt2train.lifeline import LAUNCHER, die_with_parent

UNFINISHED = 75  # EX_TEMPFAIL of sysexits.h: try again
ORPHANED = signal.SIGUSR1  # the parent is gone; also what Slurm's --signal is often told to send as a warning
ONE_WISH = 1.0  # seconds within which several signals count as one: a scheduler may signal the whole process group


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun in this process; the exit code."""
    parser = argparse.ArgumentParser(prog="gpt2train.launch", description="Run torchrun and leave no orphans.")
    parser.add_argument("--parent", type=int, help="process whose end ends the job; without it, that of the caller")
    parser.add_argument("--complete", metavar="RUN", help="exit code 75 when this run stops before its last step")
    parser.add_argument("torchrun", nargs=argparse.REMAINDER, help="-- and torchrun's arguments")
    parser.add_argument("--lost", type=int, default=1, help="exit code when a process was lost: killed, cut off, hung")
    parser.add_argument("--grace", type=float, help="seconds to save after a signal or the parent's end, then a kill")
    options = parser.parse_args(argv)
    arguments = options.torchrun[1:] if options.torchrun[:1] == ["--"] else options.torchrun
    if not arguments:
        parser.error("torchrun's arguments are missing after --")
    stop = _PassOn(options.grace)
    for number in (signal.SIGTERM, signal.SIGINT, ORPHANED):
        signal.signal(number, stop)
    if options.parent is not None:
        die_with_parent(options.parent, signal.SIGKILL if options.grace is None else ORPHANED)

    from torch.distributed import DistError, run  # 1.5 s: after the lifeline
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    from gpt2train import agent

    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(_threads(run.parse_args(arguments).nproc_per_node)))
    # torchrun keeps its hands off SIGTERM and SIGINT: it would kill the ranks 30 s into a save.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its table of failures; we give a line
    try:
        agent.start(arguments, find_seat(os.environ), lambda: stop.came)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        return stop.told() if stop.forced else agent.tell(codes, stop.came, options.lost)
    except (RendezvousError, DistError) as error:  # the second from an agent that waits for one that was killed
        print(f"error: the launchers of the machines lost each other: {error}", file=sys.stderr)
        return int(options.lost)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return agent.USER_ERROR
    return 0 if options.complete is None else _completeness(Path(options.complete))


def _completeness(run: Path) -> int:
    """0 when the newest checkpoint of a run is that of its last step."""
    from gpt2train.checkpoint import store
    from gpt2train.config import CONFIG_FILE, read_run_config

    steps = read_run_config(run / CONFIG_FILE).steps
    reached = store.read_manifest(store.newest(run)).position.step
    if reached < steps:
        print(f"stopped at step {reached} of {steps}; it goes on from there when it is started again", flush=True)
    return 0 if reached >= steps else UNFINISHED


class _PassOn:
    """Sends SIGTERM to the ranks, which save and end; the launcher ends when they have. A second one kills them.

    Args:
        grace: seconds until the ranks are killed; they have them even when the parent is killed before or meanwhile.
            Prefect's workers give a cancelled flow 30 s, and one whose worker is stopped none at all, while a large
            checkpoint can take a minute. None: no limit.
    """

    def __init__(self, grace: float | None = None) -> None:
        self.came = self.forced = False
        self._grace = grace
        self._since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came and number == ORPHANED:
            return  # no second wish: the parent of a job that is asked to stop may well be gone before it has saved
        self.forced = self.came and time.monotonic() - self._since > ONE_WISH
        if not self.came:
            self.came, self._since = True, time.monotonic()
            if self._grace is not None:
                end = threading.Timer(self._grace, os._exit, [128 + signal.SIGTERM])  # the ranks die with us
                end.daemon = True
                end.start()
        ranks = psutil.Process().children()
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill() if self.forced else rank.terminate()
        if not ranks:
            sys.exit(128 + signal.SIGTERM)

    def told(self) -> int:
        """Say that the second signal ended the job; the exit code."""
        print("ended at once by a second signal; what came after the last checkpoint is lost", file=sys.stderr)
        return 128 + signal.SIGTERM


def _threads(processes: str) -> int:
    """Cores for each rank; torchrun by itself gives one and a warning."""
    from torch.distributed.run import determine_local_world_size

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // determine_local_world_size(processes))


if __name__ == "__main__":
    sys.exit(main())
