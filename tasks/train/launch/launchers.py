"""Launchers of training jobs: one function per launcher, all with one interface (`Launcher`)."""

import collections
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gpt2train.config import TrainSettings
from gpt2train.plan.devices import find_gpus
from tasks.train.launch.job import LAST_LINES, Job, job_error
from tasks.train.launch.local import run_local
from tasks.train.launch.rank_logs import level_of, tail_rank_logs
from tasks.train.launch.settings import LaunchSettings
from tasks.train.launch.slurm.run import check_slurm, run_slurm
from tasks.train.launch.ssh import check_ssh, run_ssh

log = logging.getLogger("gpt2train")


class Launcher(Protocol):
    """Function that starts the processes of a job, follows them, and ends all of them when it is stopped itself."""

    def __call__(self, job: Job, on_line: Callable[[str], None]) -> int:
        """Run a job to its end, or follow one that an earlier call for the same job left running.

        On any exception (cancellation, Ctrl-C) the whole job gets SIGTERM, on which the engine saves a checkpoint, and
        SIGKILL after `shutdown_timeout` seconds; no process of it is left running.

        Args:
            job: The job.
            on_line: Callback for each line that the launcher prints, and that ranks print outside their logs:
                `error: …`, `warning: …`, or any other text. Lines that ranks log come from their files
                (`tasks/train/launch/rank_logs.py`).

        Returns:
            Exit code. 0: all ranks succeeded (also after SIGTERM and a saved checkpoint). 2: a user's mistake,
            described by a line `error: …`. `job.LOST` or a negative number: a process was lost, and the job can be
            retried. Any other: a failure. The first `error: …` among the last lines is the cause.
        """


LAUNCHERS: Mapping[str, Launcher] = {"torchrun": run_local, "ssh": run_ssh, "slurm": run_slurm}


def check_launcher(settings: LaunchSettings, output: str) -> None:
    """Check, before anything starts, that the launcher can start a job from this machine.

    Raises:
        UserError: The launcher's commands are missing here, or the job's machines cannot reach the output.
    """
    if settings.launcher == "slurm":
        check_slurm(Path(output))
    elif settings.launcher == "ssh":
        check_ssh(settings)


def devices_of(train: TrainSettings, launch: LaunchSettings) -> tuple[str, ...]:
    """Return the devices of this machine that a training job occupies: `GPU 0`, `GPU 1`, … or `cores`.

    Empty if another program schedules the job (Slurm) or the processes run on other machines (ssh).
    """
    if launch.launcher != "torchrun":
        return ()
    gpus = find_gpus() if train.device != "cpu" else ()
    enough = len(gpus) >= launch.processes  # otherwise the engine trains on the CPU
    return tuple(f"GPU {gpu.index}" for gpu in gpus[: launch.processes]) if enough else ("cores",)


def run_job(job: Job) -> None:
    """Run a job to its end; log its lines and those of its ranks with their levels.

    Raises:
        UserError: The engine rejected a setting or the data.
        TransientError: A process of the job was lost, on this or another machine.
        RunError: The job ended with an error; the message has the engine's own.
    """
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)

    with tail_rank_logs(job.run / "logs") as ranks:

        def on_line(line: str) -> None:
            last.append(line)
            ranks.note_printed(line)
            log.log(*level_of(line))

        code = LAUNCHERS[job.settings.launcher](job, on_line)
    if code:
        raise job_error(code, last, job)
