"""torchrun without orphans, with graceful SIGTERM, restarts of lost ranks and one-line error reports.

    python -m gpt2train.launch -- --nproc-per-node 2 -m gpt2train.train --config run.toml
    python -m gpt2train.launch -- --nproc-per-node 8 --max-restarts 3 -m gpt2train.train --config run.toml
    srun --ntasks-per-node 1 python -m gpt2train.launch -- --nproc-per-node 8 -m gpt2train.train --config run.toml

The arguments after `--` are torchrun's own; on several machines without Slurm they include `--nnodes`,
`--rdzv-backend c10d`, `--rdzv-endpoint` and `--rdzv-id`, or `--node-rank` and `--master-addr`. With plain torchrun
`kill -9` of the launcher's parent would leave torchrun running, and `kill -9` of torchrun its ranks; here each process
ends with its parent. SIGTERM, Ctrl-C, a closed terminal and a scheduler's SIGUSR1 or SIGUSR2 reach the ranks as
SIGTERM, and the launcher waits until they have saved; a second signal ends all at once. After the loss of a rank all
ranks restart from the last checkpoint, up to `--max-restarts` times; after a user's mistake they do not.

The exit code is that of the rank that failed first: 2 for a user's mistake, otherwise 1; 0 if all ranks succeeded. With
`--complete RUN` it is 75 if the run stopped early because a machine got a signal, so that a scheduler requeues the job.
`--lost 3` sets the code of failures that are worth a retry: a process was killed, disconnected or hung. With
`--grace 60` the ranks save within 60 s even if the parent is killed.
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

from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.errors import UserError
from gpt2train.launch.exit_codes import LAUNCHER, RESUMES, USER_ERROR
from gpt2train.launch.rank_logs import quietly
from gpt2train.store.process import WARNING_SIGNALS, die_with_parent, end_with_descendants, hangup_signals
from gpt2train.store.run_folder import checkpoint_step, last_step, newest_checkpoint

CPP_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
TRAINING = "gpt2train.train"  # module of a training, whose state is saved
UNFINISHED = 75  # EX_TEMPFAIL of sysexits.h: try again
ORPHANED = next(iter(WARNING_SIGNALS), signal.SIGTERM)  # sent when the parent is gone
# Several signals within this time count as one, since a scheduler may signal the whole process group.
SIGNAL_DEBOUNCE_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun in this process and return the exit code."""
    parser = argparse.ArgumentParser(prog="gpt2train.launch", description="Run torchrun and leave no orphans.")
    parser.add_argument("--parent", type=int, help="id of the process whose death ends the job")
    parser.add_argument("--complete", metavar="RUN", help="exit with code 75 if this run stops before its last step")
    parser.add_argument("torchrun", nargs=argparse.REMAINDER, help="-- and torchrun's arguments")
    parser.add_argument("--lost", type=int, default=1, help="exit code if a process was killed, disconnected or hung")
    parser.add_argument("--grace", type=float, help="seconds to save after a signal or the parent's death, then a kill")
    options = parser.parse_args(argv)
    arguments = options.torchrun[1:] if options.torchrun[:1] == ["--"] else options.torchrun
    if not arguments:
        parser.error("torchrun's arguments are missing after --")
    resumes = RESUMES if TRAINING in arguments else ""
    stop = SignalForwarder(options.grace)
    for number in (signal.SIGTERM, signal.SIGINT, *WARNING_SIGNALS, *hangup_signals()):
        signal.signal(number, stop)
    if options.parent is not None:
        die_with_parent(options.parent, signal.SIGKILL if options.grace is None else ORPHANED)

    # Where the machine that hosts the store ends first, the launchers of the others would print C++ stacks of 40 lines.
    # Read when torch is imported; the ranks, whose native output has a log of its own, keep their level.
    level = os.environ.get(CPP_LOG_LEVEL)
    os.environ.setdefault(CPP_LOG_LEVEL, "ERROR")

    from torch.distributed import DistError  # takes 1.5 s, so only after die_with_parent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    from gpt2train.launch import elastic_agent

    if level is None:
        del os.environ[CPP_LOG_LEVEL]
    os.environ[LAUNCHER] = str(os.getpid())
    # torchrun must not handle the others: it would kill the ranks 30 s into a save, and those that nohup keeps alive.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # no failure table; we print one line
    try:
        elastic_agent.start(arguments, os.environ, lambda: stop.received)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        if stop.forced:
            message = f"killed by a second signal; steps after the last checkpoint are lost{resumes}"
            quietly(print)(message, file=sys.stderr)
            return 128 + signal.SIGTERM
        return elastic_agent.report_failure(codes, stop.received, options.lost, resumes)
    except (RendezvousError, DistError) as error:  # DistError: another agent was killed while this one waited for it
        quietly(print)(f"error: the launchers of the machines lost each other: {error}{resumes}", file=sys.stderr)
        return int(options.lost)
    except UserError as error:
        quietly(print)(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return 0 if options.complete is None else _completeness(Path(options.complete))


def _completeness(run: Path) -> int:
    """Exit code 0 if the newest checkpoint of a run is that of its last step, otherwise 75."""
    steps = last_step(run, read_run_config(run / CONFIG_FILE).steps)
    reached = checkpoint_step(newest_checkpoint(run))
    if reached < steps:
        message = f"stopped at step {reached} of {steps}; it resumes from there when it is started again"
        quietly(print)(message, flush=True)
    return 0 if reached >= steps else UNFINISHED


class SignalForwarder:
    """Signal handler that sends SIGTERM to the ranks, which save and exit. A second signal kills them.

    After `grace` seconds the ranks are killed, also if the parent dies before or during the save: Prefect's workers
    give a cancelled flow 30 s, and no time at all if the worker is stopped, while a large checkpoint can take a minute.
    `received` is True after the first signal, `forced` after a second.
    """

    def __init__(self, grace: float | None = None) -> None:
        self.received = self.forced = False
        self._grace = grace
        self._since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: forward SIGTERM to the ranks, or kill them after a second signal."""
        if self.received and number in WARNING_SIGNALS:
            return  # not a second request: the parent of a stopping job may exit before the job has saved
        self.forced = self.received and time.monotonic() - self._since > SIGNAL_DEBOUNCE_SECONDS
        if not self.received:
            self.received, self._since = True, time.monotonic()
            if self._grace is not None:
                end = threading.Timer(self._grace, end_with_descendants, [128 + signal.SIGTERM])
                end.daemon = True
                end.start()
        ranks = psutil.Process().children(recursive=self.forced)
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill() if self.forced else rank.terminate()
        if not ranks:
            sys.exit(128 + signal.SIGTERM)
