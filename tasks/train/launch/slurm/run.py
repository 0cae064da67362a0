"""Launcher for Slurm: submits a job, follows it, and resubmits it if it ended early.

The job id is recorded in `slurm.json` in the run folder. The job of a killed flow goes on under Slurm; the next flow of
the same run finds it by that id, or by its script, and follows it.
"""

import json
import socket
import time
import tomllib
from pathlib import Path

import psutil

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.launch.rank_logs import quietly
from gpt2train.store.counts import count_of
from gpt2train.store.files import write_atomic
from gpt2train.store.run_folder import last_step, newest_checkpoint
from tasks.train.launch.job import Job, LogLineSink, again
from tasks.train.launch.registry import Launcher, register_launcher
from tasks.train.launch.slurm import controller
from tasks.train.launch.slurm.controller import State
from tasks.train.launch.slurm.follow import POLL_SECONDS, STOPPED_EARLY, Output, follow, wait
from tasks.train.launch.slurm.script import SCRIPT, output_of, write_script
from tasks.train.launch.slurm.settings import SlurmSettings

RECORD = "slurm.json"
FILE_VISIBLE_SECONDS = 30.0  # until a network file system shows a file that another machine created
CANCEL_SECONDS = 90.0  # Slurm's KillWait (30 s) and the epilog; a job that lasts longer is reported
INTERRUPTED = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL")  # caused by the cluster, not by the job
ENDED_EARLY = ("TIMEOUT", *INTERRUPTED)
MAX_IN_VAIN = 2  # consecutive submissions that end early without a new checkpoint
LOCAL_FOLDERS = ("/tmp", "/var/tmp")  # local to each machine on any cluster
LOCAL_FILE_SYSTEMS = ("tmpfs", "ramfs", "overlay")

REMEDIES = {
    controller.OUT_OF_MEMORY: "it exceeded its memory: set a larger launch.slurm.memory, or a smaller layout "
    "(gpt2train plan)",
    "CANCELLED": "it was cancelled (scancel)",
    "DEADLINE": "its deadline passed",
    "REVOKED": "another cluster took it",
    controller.FORGOTTEN: "the controller has purged it, and there is no accounting that shows how it ended",
}
NO_STEP = (
    "ended early ({}) without a new checkpoint, as did the previous one: launch.slurm.time_limit less "
    "launch.slurm.save_before must suffice for the first steps"
)
MORE_TIMES = "submitted {}, the limit of launch.slurm.resubmit"


def run_slurm(job: Job, on_line: LogLineSink) -> int:
    """Run a job under Slurm to its end and return its exit code. See `registry.Launcher`.

    Raises:
        UserError: Slurm is not installed here, sbatch rejects the job, or its run folder is not on a shared disk.
        RunError: Slurm ended the job; the message has Slurm's state.
    """
    check_slurm(job.run)
    try:
        return _run_to_end(job, on_line)
    except (UserError, RunError):
        raise  # the job has ended
    except BaseException:
        _stop(job, quietly(on_line))
        raise


def check_slurm(folder: Path) -> None:
    """Check, before a job is submitted, that Slurm is installed and that jobs can reach the run folder.

    Raises:
        UserError: Slurm is not installed here, or the folder is local to this machine and jobs run on others.
    """
    controller.check_commands()
    folder = folder.absolute()
    if not _is_machine_local(folder):
        return
    nodes = controller.node_names()
    if nodes and socket.gethostname().partition(".")[0] not in nodes:
        raise UserError(
            f"{folder} is local to this machine, and Slurm's jobs run on others; give an --output on a shared disk"
        )


def _is_machine_local(folder: Path) -> bool:
    if any(folder.is_relative_to(local) for local in LOCAL_FOLDERS):
        return True
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    nearest = next((str(path) for path in (folder, *folder.parents) if str(path) in mounts), "/")
    return mounts.get(nearest) in LOCAL_FILE_SYSTEMS


def _run_to_end(job: Job, on_line: LogLineSink) -> int:
    slurm = job.settings.group(SlurmSettings)
    number = running_job(job)
    if number is not None:
        on_line(f"Slurm job {number} of this run exists already: following it, with the settings of its submission")
    fresh = number is None
    saved, in_vain = _saved_steps(job), 0
    steps = int(tomllib.loads(Path(job.config).read_text())["steps"])
    for left in range(slurm.resubmit, -1, -1):
        number = _submit(job, on_line) if number is None else number
        state = follow(job, number, fresh, on_line)
        on_line(f"Slurm job {number} ended: {state.name}{_reason(state)}")
        before, saved = saved, _saved_steps(job)
        if state.name in ("COMPLETED", controller.FORGOTTEN) and saved >= last_step(job.run, steps):
            return 0
        if state.name not in ("COMPLETED", *ENDED_EARLY) and state.code != STOPPED_EARLY:
            return _exit_code(job, number, state)
        if not left:
            if state.name == "COMPLETED":
                return 0  # saved before the last step; the caller compares the steps
            times = MORE_TIMES.format(count_of(slurm.resubmit + 1, "time"))
            raise RunError(f"Slurm job {number} ended early ({state.name}), {times}; {again(job.run)}")
        in_vain = 0 if saved > before or state.name in INTERRUPTED else in_vain + 1
        if in_vain == MAX_IN_VAIN:
            raise RunError(f"Slurm job {number} {NO_STEP.format(state.name)}; {again(job.run)}")
        on_line(f"it ended early: resubmitting it ({left - 1} more are left)")
        number, fresh = None, True
    raise AssertionError("the last round returns or raises")


def running_job(job: Job) -> int | None:
    """Return the id of this run's waiting or running Slurm job, submitted by a flow or by hand; None if none."""
    number = _recorded_job(job)
    if number is not None:
        state = controller.query_state(number)
        if state is None:
            return number  # without an answer of the controller, no second job must be submitted
        # Ids start again when a controller loses its state, so the script is compared too.
        if not state.ended and controller.is_script(state.command, _script_path(job)):
            return number
    return controller.find_job(_script_path(job))


def _saved_steps(job: Job) -> int:
    """Return the steps of the newest checkpoint; 0 without a checkpoint."""
    try:
        return int(read_manifest(newest_checkpoint(job.run)).position.step)
    except UserError:
        return 0


def _submit(job: Job, on_line: LogLineSink) -> int:
    script = write_script(job)
    logs = output_of(job, 0).parent
    try:
        logs.mkdir(exist_ok=True)  # Slurm does not create it
    except OSError as error:
        raise UserError(f"cannot write {logs}: {error.strerror}; give another output") from error
    number = controller.submit(script)
    write_atomic(job.run / RECORD, json.dumps({"job": number, "output": str(output_of(job, number))}).encode())
    on_line(f"Slurm job {number} submitted: {script}")
    return number


def _exit_code(job: Job, number: int, state: State) -> int:
    """Return the exit code of a job that failed by itself.

    Raises:
        RunError: Slurm ended the job, or its nodes cannot write to the run folder.
        TransientError: Slurm no longer knows the job.
    """
    if state.name in REMEDIES:
        kind = TransientError if state.name == controller.FORGOTTEN else RunError
        remedy = f"{REMEDIES[state.name]}; {again(job.run)}"
        raise kind(f"Slurm job {number} ended with {state.name}: {remedy} (logs: {job.run / 'logs'})")
    deadline = time.monotonic() + FILE_VISIBLE_SECONDS
    while not output_of(job, number).exists():
        if time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            continue
        raise RunError(
            f"Slurm job {number} could not write {output_of(job, number)}: on its node the folder does not exist or is "
            "not yours; give an --output on a disk that all machines of the cluster share"
        )
    return state.code or 1


def _stop(job: Job, on_line: LogLineSink) -> None:
    """Let the job save and end; cancel it after `shutdown_timeout` seconds or on a second interrupt."""
    number = running_job(job)
    if number is None:
        return
    output = Output(output_of(job, number), fresh=False)
    output.lines()
    on_line(f"asking Slurm job {number} to save and end, for {job.settings.shutdown_timeout:.0f} s at most")
    try:
        wait(number, job.settings.shutdown_timeout, output, on_line, terminate=True)
    finally:
        controller.cancel(number)  # no effect on a job that has ended
    if not wait(number, CANCEL_SECONDS, output, on_line, terminate=False):
        on_line(f"Slurm job {number} has not ended after {CANCEL_SECONDS:.0f} s; see: scontrol show job {number}")


def _recorded_job(job: Job) -> int | None:
    try:
        return int(json.loads((job.run / RECORD).read_text())["job"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _script_path(job: Job) -> Path:
    return job.run.absolute() / SCRIPT


def _reason(state: State) -> str:
    """Format the exit code or signal of a state, as in `FAILED (exit code 2)`."""
    if state.code:
        return f" (signal {-state.code})" if state.code < 0 else f" (exit code {state.code})"
    return ""


register_launcher("slurm", Launcher(run_slurm, lambda settings, output: check_slurm(Path(output)), SlurmSettings))
