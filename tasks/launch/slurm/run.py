"""The launcher for Slurm: submits a job, follows it, and submits again what ended early.

The number of the job lies in the run folder, in `slurm.json`. A flow that was killed leaves its job in Slurm's hands;
the next flow of the same run finds it by that number, or by its script, and goes on following it.
"""

import json
import socket
import time
import tomllib
from pathlib import Path

import psutil

from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.files import write_whole
from tasks.launch.job import Job
from tasks.launch.slurm import controller
from tasks.launch.slurm.controller import State
from tasks.launch.slurm.follow import LOOK_SECONDS, STOPPED_EARLY, Tell, follow, wait
from tasks.launch.slurm.output import Output
from tasks.launch.slurm.script import SCRIPT, output_of, write_script

RECORD = "slurm.json"
SEEN_SECONDS = 30.0  # until a network file system shows that another machine made a file
END_SECONDS = 90.0  # Slurm's KillWait (30 s) and the epilog, before an end that does not come is told
MOVED = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL")  # the cluster's doing: as likely to go well the next time
EARLY = ("TIMEOUT", *MOVED)
IN_VAIN = 2  # submissions in a row that end early without a new checkpoint, before a third is not tried
OWN_PLACES = ("/tmp", "/var/tmp")  # of each machine its own, on any cluster
MEMORY_DISKS = ("tmpfs", "ramfs", "overlay")

REMEDIES = {
    controller.OUT_OF_MEMORY: "it took more memory than Slurm gave: a larger launch.slurm.memory, or a smaller layout "
    "(gpt2train plan); the same command goes on from the last checkpoint",
    "CANCELLED": "someone took it back (scancel); the same command goes on from the last checkpoint",
    "DEADLINE": "its deadline passed; the same command goes on from the last checkpoint",
    "REVOKED": "another cluster took it; the same command goes on from the last checkpoint",
    controller.FORGOTTEN: "the controller knows it no longer, and no accounting tells how it ended; "
    "the same command goes on from the last checkpoint",
}
NO_STEP = (
    "ended early ({}) and saved nothing, as the one before it: from launch.slurm.time_limit, less "
    "launch.slurm.save_before, the first steps must fit; the same command goes on from the last checkpoint"
)
MORE_TIMES = "submitted {} times, which is launch.slurm.resubmit; the same command goes on from the last checkpoint"


def run_slurm(job: Job, tell: Tell) -> int:
    """Run a job under Slurm to its end; the exit code. See `tasks.launch.Launcher`.

    Raises:
        UserError: there is no Slurm here, sbatch refuses the job, or its run folder is on no shared disk.
        RunError: Slurm ended it; the message has Slurm's word for it.
    """
    check_slurm(job.run)
    try:
        return _to_the_end(job, tell)
    except (UserError, RunError):
        raise  # there is no job any more
    except BaseException:
        _stop(job, tell)
        raise


def check_slurm(folder: Path) -> None:
    """Find before anything is submitted what would keep a job from its run folder.

    Raises:
        UserError: no Slurm here, or the folder is on this machine alone and jobs run on others.
    """
    controller.need_slurm()
    folder = folder.absolute()
    if not _of_this_machine_alone(folder):
        return
    machines = controller.machines()
    if machines and socket.gethostname().partition(".")[0] not in machines:
        raise UserError(
            f"{folder} is on this machine alone, and Slurm's jobs run on others; give an --output they share"
        )


def _of_this_machine_alone(folder: Path) -> bool:
    if any(folder.is_relative_to(place) for place in OWN_PLACES):
        return True
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    nearest = next((str(place) for place in (folder, *folder.parents) if str(place) in mounts), "/")
    return mounts.get(nearest) in MEMORY_DISKS


def _to_the_end(job: Job, tell: Tell) -> int:
    how = job.settings.slurm
    number = running_job(job)
    if number is not None:
        tell(f"Slurm job {number} of this run is there already: following it, with the settings it was submitted with")
    fresh = number is None
    saved, in_vain = _saved_steps(job), 0
    for left in range(how.resubmit, -1, -1):
        number = _submit(job, tell) if number is None else number
        state = follow(job, number, fresh, tell)
        tell(f"Slurm job {number} ended: {state.name}{_why(state)}")
        before, saved = saved, _saved_steps(job)
        if state.name in ("COMPLETED", controller.FORGOTTEN) and saved >= _steps(job):
            return 0
        if state.name not in ("COMPLETED", *EARLY) and state.code != STOPPED_EARLY:
            return _failed(job, number, state)
        if not left:
            if state.name == "COMPLETED":
                return 0  # saved before the last step: the caller sees how far it came
            raise RunError(f"Slurm job {number} ended early ({state.name}), {MORE_TIMES.format(how.resubmit + 1)}")
        in_vain = 0 if saved > before or state.name in MOVED else in_vain + 1
        if in_vain == IN_VAIN:
            raise RunError(f"Slurm job {number} {NO_STEP.format(state.name)}")
        tell(f"it ended early: submitting it again, to go on from the last checkpoint ({left - 1} more are left)")
        number, fresh = None, True
    raise AssertionError("the last round returns or raises")


def running_job(job: Job) -> int | None:
    """The job of this run that waits or runs: the one we submitted, or a person with the run's script."""
    number = _recorded(job)
    if number is not None:
        state = controller.look(number)
        if state is None:
            return number  # the controller is silent: not the time to submit a second one
        # Numbers begin anew when a controller loses its state: the script tells whose job it is.
        if not state.over and controller.is_script(state.command, _script_path(job)):
            return number
    return controller.find(_script_path(job))


def _saved_steps(job: Job) -> int:
    """Steps of the newest checkpoint; 0 where none was saved."""
    from gpt2train.checkpoint import store  # imports torch (1-2 s), which nothing else here needs

    try:
        return int(store.read_manifest(store.newest(job.run)).position.step)
    except UserError:
        return 0


def _steps(job: Job) -> int:
    """Steps of the whole training."""
    return int(tomllib.loads(Path(job.config).read_text())["steps"])


def _submit(job: Job, tell: Tell) -> int:
    script = write_script(job)
    logs = output_of(job, 0).parent
    try:
        logs.mkdir(exist_ok=True)  # Slurm makes no folder
    except OSError as error:
        raise UserError(f"cannot write {logs}: {error.strerror}; give another output") from error
    number = controller.submit(script)
    write_whole(job.run / RECORD, json.dumps({"job": number, "output": str(output_of(job, number))}).encode())
    tell(f"Slurm job {number} submitted: {script}")
    return number


def _failed(job: Job, number: int, state: State) -> int:
    """The exit code of a job that failed by itself; an error for one that Slurm ended.

    Raises:
        RunError: Slurm ended it.
    """
    if state.name in REMEDIES:
        kind = TransientError if state.name == controller.FORGOTTEN else RunError
        raise kind(f"Slurm job {number} ended with {state.name}: {REMEDIES[state.name]} (logs: {job.run / 'logs'})")
    deadline = time.monotonic() + SEEN_SECONDS
    while not output_of(job, number).exists():
        if time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            continue
        raise RunError(
            f"Slurm job {number} could not write {output_of(job, number)}: where it ran there is no such folder, or it "
            "is not yours; give an --output on a disk that all machines of the cluster share"
        )
    return state.code or 1


def _stop(job: Job, tell: Tell) -> None:
    """Have the job save and end; after the grace time, or when asked once more, end it as it is."""
    number = running_job(job)
    if number is None:
        return
    output = Output(output_of(job, number), fresh=False)
    output.lines()
    tell(f"asking Slurm job {number} to save and end, for {job.settings.grace:.0f} s at most")
    try:
        wait(number, job.settings.grace, output, tell, asked=True)
    finally:
        controller.end(number)  # of a job that is over by now, nothing
    if not wait(number, END_SECONDS, output, tell, asked=False):
        tell(
            f"Slurm job {number} is still there after {END_SECONDS:.0f} s; look at it with: scontrol show job {number}"
        )


def _recorded(job: Job) -> int | None:
    try:
        return int(json.loads((job.run / RECORD).read_text())["job"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _script_path(job: Job) -> Path:
    return job.run.absolute() / SCRIPT


def _why(state: State) -> str:
    """What of a state explains an end: `FAILED (exit code 2)`."""
    if state.code:
        return f" (signal {-state.code})" if state.code < 0 else f" (exit code {state.code})"
    return ""
