"""Starting a training job, on whatever there is: one function a launcher, all with the same promise."""

import collections
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tasks.launch.job import LAST_LINES, Job, job_error
from tasks.launch.local import run_local
from tasks.launch.ranks import followed_ranks, level_of
from tasks.launch.settings import LaunchSettings
from tasks.launch.slurm.run import check_slurm, run_slurm
from tasks.launch.ssh import check_ssh, run_ssh

log = logging.getLogger("gpt2train")


class Launcher(Protocol):
    """Starts the processes of a job, follows them, and ends them all when it is stopped itself."""

    def __call__(self, job: Job, tell: Callable[[str], None]) -> int:
        """Run a job to its end, or go on following one that an earlier call of the same job left running.

        On any exception that reaches it (cancellation, Ctrl-C) the whole job gets SIGTERM, by which the engine saves a
        checkpoint, then `grace` seconds, then SIGKILL; nothing of it is left running.

        Args:
            job: the job.
            tell: takes each line that the launcher prints, and each that ranks print beside their logs: `error: …`,
                `warning: …`, or anything. What ranks log comes from their files (`tasks/launch/ranks.py`).

        Returns:
            0: all ranks ended well (also: asked to stop, and saved). 2: a user's mistake, told in a line `error: …`.
            `job.LOST`, or a negative number: a process was lost, the job is worth another try. Any other: a failure.
            The first `error: …` among the last lines is the cause.
        """


LAUNCHERS: Mapping[str, Launcher] = {"torchrun": run_local, "ssh": run_ssh, "slurm": run_slurm}


def check_launcher(settings: LaunchSettings, output: str) -> None:
    """Find before anything starts what would keep a job from being started here.

    Raises:
        UserError: the launcher's commands are not here, or the output is out of the machines' reach.
    """
    if settings.launcher == "slurm":
        check_slurm(Path(output))
    elif settings.launcher == "ssh":
        check_ssh(settings)


def run_job(job: Job) -> None:
    """Run a job to its end; its lines, and those of its ranks, become lines of the log with their own level.

    Raises:
        UserError: the engine refused a setting or the data.
        TransientError: a process of it was lost, on this or another machine.
        RunError: it ended with an error; the message has the engine's own last one.
    """
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)

    with followed_ranks(job.run / "logs") as ranks:

        def tell(line: str) -> None:
            last.append(line)
            ranks.told(line)
            log.log(*level_of(line))

        code = LAUNCHERS[job.settings.launcher](job, tell)
    if code:
        raise job_error(code, last, job)
