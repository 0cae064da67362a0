"""The launcher for Slurm: submits a job, follows it, and submits again what ended early.

The number of the job lies in the run folder, in `slurm.json`. A flow that was killed leaves its job in Slurm's hands;
the next flow of the same run finds it by that number, or by its script, and goes on following it.
"""

import json
import socket
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import psutil

from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.files import write_whole
from tasks.launch.job import Job
from tasks.launch.slurm import controller
from tasks.launch.slurm.controller import State
from tasks.launch.slurm.output import Output
from tasks.launch.slurm.script import SCRIPT, output_of, write_script

Tell = Callable[[str], None]

RECORD = "slurm.json"
LOOK_SECONDS = 1.0  # between two looks at the output
SEEN_SECONDS = 30.0  # until a network file system shows that another machine made a file
END_SECONDS = 90.0  # Slurm's KillWait (30 s) and the epilog, before an end that does not come is told
STOPPED_EARLY = 128 + 15  # exit code of a job that SIGTERM met before its ranks could save
EARLY = ("TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL")
OWN_PLACES = ("/tmp", "/var/tmp")  # of each machine its own, on any cluster
# Reasons that no waiting changes, words of Slurm's.
NEVER = ("PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed")
MEMORY_DISKS = ("tmpfs", "ramfs", "overlay")

REMEDIES = {
    "OUT_OF_MEMORY": "it took more memory than Slurm gave: a larger launch.slurm.memory, or a smaller layout "
    "(gpt2train plan); the same command goes on from the last checkpoint",
    "CANCELLED": "someone took it back (scancel); the same command goes on from the last checkpoint",
    "DEADLINE": "its deadline passed; the same command goes on from the last checkpoint",
    "REVOKED": "another cluster took it; the same command goes on from the last checkpoint",
    controller.FORGOTTEN: "the controller knows it no longer, and no accounting tells how it ended; "
    "the same command goes on from the last checkpoint",
}
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
    for left in range(how.resubmit, -1, -1):
        number = _submit(job, tell) if number is None else number
        state = _follow(job, number, fresh, tell)
        tell(f"Slurm job {number} ended: {state.name}{_why(state)}")
        if state.name in ("COMPLETED", controller.FORGOTTEN) and is_finished(job):
            return 0
        if state.name not in ("COMPLETED", *EARLY) and state.code != STOPPED_EARLY:
            return _failed(job, number, state)
        if not left:
            if state.name == "COMPLETED":
                return 0  # saved before the last step: the caller sees how far it came
            raise RunError(f"Slurm job {number} ended early ({state.name}), {MORE_TIMES.format(how.resubmit + 1)}")
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


def is_finished(job: Job) -> bool:
    """Whether the newest checkpoint has all steps of the run."""
    from gpt2train.checkpoint import store  # imports torch (1-2 s), which nothing else here needs

    steps = tomllib.loads(Path(job.config).read_text())["steps"]
    try:
        return bool(store.read_manifest(store.newest(job.run)).position.step >= steps)
    except UserError:
        return False  # none was saved


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


def _follow(job: Job, number: int, fresh: bool, tell: Tell) -> State:
    """Follow a job until nothing of it runs or waits; what it prints and what Slurm says of it is told.

    Raises:
        UserError: it asks for what Slurm never gives.
    """
    output = Output(output_of(job, number), fresh)
    told = ""
    while True:
        state = controller.look(number)
        if state is not None and state.name == "PENDING" and state.reason in NEVER:
            controller.end(number)
            raise UserError(f"Slurm would never start job {number}: {state.reason}; change launch.slurm (see sinfo)")
        saying = _saying(number, state)
        if saying and saying != told:
            tell(saying)
            told = saying
        over = state is not None and state.over
        asked = time.monotonic()
        while True:
            for line in output.lines(last=over):
                tell(line)
            left = asked + job.settings.slurm.poll - time.monotonic()
            if over or left <= 0:
                break
            time.sleep(min(LOOK_SECONDS, left))
        if state is not None and over:
            if state.code > 0 and state.code != STOPPED_EARLY and output.cause:
                tell(f"error: {output.cause}")
            return state


def _saying(number: int, state: State | None) -> str:
    """A line for a state that is worth one; empty for what passes by itself."""
    if state is None:
        return f"Slurm's controller does not answer; job {number} goes on without it, asking again"
    again = f", put back into the queue {state.restarts} times" if state.restarts else ""
    if state.name == "PENDING":
        hint = f"; scontrol release {number} lets it go" if state.reason.startswith("JobHeld") else ""
        return f"Slurm job {number} waits: {state.reason or 'its turn'}{again}{hint}"
    if state.name in ("RUNNING", "SUSPENDED", "STOPPED"):
        doing = "runs on" if state.name == "RUNNING" else "is suspended on"
        return f"Slurm job {number} {doing} {state.nodes}{again}"
    return ""


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
        _wait(number, job.settings.grace, output, tell, asked=True)
    finally:
        controller.end(number)  # of a job that is over by now, nothing
    if not _wait(number, END_SECONDS, output, tell, asked=False):
        tell(
            f"Slurm job {number} is still there after {END_SECONDS:.0f} s; look at it with: scontrol show job {number}"
        )


def _wait(number: int, seconds: float, output: Output, tell: Tell, asked: bool) -> bool:
    """Wait until a job is over; whether it is. `asked`: it is told to save as soon as it runs."""
    deadline = time.monotonic() + seconds
    signalled = False
    while time.monotonic() < deadline:
        state = controller.look(number)
        for line in output.lines():
            tell(line)
        if state is not None:
            if state.over:
                return True
            if asked and state.name == "PENDING":
                return False  # has nothing to save
            if asked and state.name == "RUNNING" and not signalled:
                controller.ask_to_save(number)
                signalled = True
        time.sleep(LOOK_SECONDS)
    return False


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
