"""A training job: what is to run, the same whoever starts it, and what its end means."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.lifeline import LOST_CONTACT
from tasks.launch.settings import LaunchSettings

USER_ERROR = 2  # exit code of the engine for a user's mistake
LAST_LINES = 20  # kept of a job's output, to tell the cause of its end
LOST = LOST_CONTACT  # exit code of a launcher when a process was lost, as `gpt2train.launch --lost 3` gives it


@dataclass(frozen=True)
class Job:
    """One training job.

    Attributes:
        config: the run's `config.toml`, in the run folder, which every machine of the job sees under this path.
        settings: how it is started.
    """

    config: str
    settings: LaunchSettings

    @property
    def run(self) -> Path:
        """The run folder."""
        return Path(self.config).parent


def torchrun_arguments(job: Job) -> list[str]:
    """torchrun's arguments, the same on every machine of a job."""
    how = job.settings
    where = ["--standalone"]
    if how.meeting_point is not None:
        # The run folder's name has the fingerprint of all settings: no other job meets under it.
        where = ["--nnodes", str(how.machines), "--rdzv-backend", "c10d", "--rdzv-endpoint", how.meeting_point]
        where += ["--rdzv-id", job.run.name]
    return [*where, *rank_arguments(job)]


def rank_arguments(job: Job) -> list[str]:
    """Those of them that do not say where the machines meet, which a scheduler tells by variables."""
    how = job.settings
    ranks = ["--nproc-per-node", str(how.processes), "--max-restarts", str(how.restarts)]
    return [*ranks, *engine_arguments(job)]


def engine_arguments(job: Job) -> list[str]:
    """Python's arguments for one rank. Quiet: `run_job` follows the ranks' logs, and meets each line there."""
    return ["-m", "gpt2train.train", "--config", job.config, "--timeout", str(job.settings.timeout), "--quiet"]


def job_error(code: int, last: Sequence[str], job: Job) -> Exception:
    """The error that ended a job: what the engine itself said where it said something, else where to look.

    A lost process (code `LOST`, or a launcher that was ended by a signal) is a `TransientError`: worth another try.
    """
    said = [line.split("error: ", 1)[1] for line in last if "error: " in line]
    if said and code == USER_ERROR:
        return UserError(said[0])
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    reason = said[0] if said else f"the training job ended with {ended}"
    kind = TransientError if code == LOST or code < 0 else RunError
    return kind(f"{reason} (logs: {job.run / 'logs'}); the same command goes on from the last checkpoint")
