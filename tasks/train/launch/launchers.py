"""Use of the chosen launcher: its check, the devices that its jobs occupy, and a job run to its end."""

import collections

from gpt2train.config import TrainSettings
from gpt2train.plan.devices import find_gpus
from tasks.train.launch.job import LAST_LINES, Job, job_error
from tasks.train.launch.rank_logs import tail_rank_logs
from tasks.train.launch.registry import launchers
from tasks.train.launch.settings import LaunchSettings


def check_launcher(settings: LaunchSettings, output: str) -> None:
    """Check, before anything starts, that the launcher can start a job from this machine.

    Raises:
        UserError: The launcher's commands are missing here, or the job's machines cannot reach the output.
    """
    if check := launchers()[settings.launcher].check:
        check(settings, output)


def runs_here(settings: LaunchSettings) -> bool:
    """Return True if the ranks of a job run on this machine."""
    return launchers()[settings.launcher].on_this_machine


def devices_of(train: TrainSettings, launch: LaunchSettings) -> tuple[str, ...]:
    """Return the devices of this machine that a training job occupies: `GPU 0`, `GPU 1`, … or `cores`.

    Empty if the processes run on other machines, or another program schedules the job.
    """
    if not runs_here(launch):
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
            ranks.forward_printed(line)

        code = launchers()[job.settings.launcher].run(job, on_line)
        error = job_error(code, last, job) if code else None
        if error is not None:  # logged by the caller: as a warning before a retry, or as the error of the command
            ranks.leave_to(str(error))
    if error is not None:
        raise error
