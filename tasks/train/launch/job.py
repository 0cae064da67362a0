"""A training job, independent of its launcher: its command line, and the error for its exit code."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.launch.exit_codes import LOST_CONTACT, RESUMES, USER_ERROR
from gpt2train.store.run_folder import list_checkpoints
from tasks.train.launch.common_settings import CommonLaunchSettings

LAST_LINES = 20  # lines of a job's output that are kept to find the cause of its end
LOST = LOST_CONTACT  # exit code of a launcher that lost a process, also that of `gpt2train.launch --lost 3`

LogLineSink = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One training job."""

    config: str  # Path of the run's `config.toml`, in the run folder; the same on every machine of the job
    settings: CommonLaunchSettings  # Settings of the launcher

    @property
    def run(self) -> Path:
        """The run folder."""
        return Path(self.config).parent


def torchrun_arguments(job: Job) -> list[str]:
    """Return the arguments of torchrun, the same on every machine of a job."""
    launch = job.settings
    rendezvous = ["--standalone"]
    if launch.rdzv_endpoint is not None:
        # The run folder's name has the fingerprint of all settings, so that no other job uses this id.
        rendezvous = ["--nnodes", str(launch.machines), "--rdzv-backend", "c10d"]
        rendezvous += ["--rdzv-endpoint", launch.rdzv_endpoint, "--rdzv-id", job.run.name]
    return [*rendezvous, *rank_arguments(job)]


def rank_arguments(job: Job) -> list[str]:
    """Return the arguments of torchrun without the rendezvous, which a scheduler gives in environment variables."""
    launch = job.settings
    ranks = ["--nproc-per-node", str(launch.processes), "--max-restarts", str(launch.restarts)]
    # Quiet, since `run_job` reads each line from the rank's log.
    return [*ranks, "-m", "gpt2train.train", "--config", job.config, "--timeout", str(launch.timeout), "--quiet"]


def job_error(code: int, last: Sequence[str], job: Job) -> Exception:
    """Return the exception for a job that failed, with the first error of the engine among the last lines, if any.

    The code is that of the launcher, or minus the signal that ended it. A lost process (`LOST`, or a signal) gives a
    `TransientError`, which is retried.
    """
    errors = [line.split("error: ", 1)[1].removesuffix(RESUMES) for line in last if "error: " in line]
    if errors and code == USER_ERROR:
        return UserError(errors[0])
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    reason = errors[0] if errors else f"the training job ended with {ended}"
    kind = TransientError if code == LOST or code < 0 else RunError
    return kind(f"{reason} (logs: {job.run / 'logs'}); {again(job.run)}")


def again(run: Path) -> str:
    """Return what the same command does after a job that ended early."""
    if list_checkpoints(run):
        return "the same command goes on from the last checkpoint"
    return "no checkpoint was saved yet, so the same command begins at step 0"
