"""Launcher for torchrun on this machine: the job runs in a session of its own and is ended as a whole."""

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

import filelock

from gpt2train.launch.rank_logs import quietly
from tasks.train.launch.job import LOST, Job, LogLineSink, torchrun_arguments
from tasks.train.launch.registry import Launcher, register_launcher

log = logging.getLogger("gpt2train")


def run_local(job: Job, on_line: LogLineSink) -> int:
    """Run torchrun on this machine to its end and return its exit code. See `registry.Launcher`."""
    wait_for_previous_job(job, on_line)
    if job.settings.nodes > 1:
        arguments = shlex.join(torchrun_arguments(job))
        log.info("start on each other machine: python -m gpt2train.launch -- %s", arguments)
    return run_command(local_command(job), job, on_line)


def local_command(job: Job) -> list[str]:
    """Return the command that runs the ranks of this machine, and ends with this process."""
    options = ["--parent", str(os.getpid()), "--lost", str(LOST), "--grace", str(job.settings.shutdown_timeout)]
    return [sys.executable, "-m", "gpt2train.launch", *options, "--", *torchrun_arguments(job)]


def run_command(command: Sequence[str], job: Job, on_line: LogLineSink) -> int:
    """Run a command of this machine that runs a job; return its exit code, or minus the signal that ended it.

    On any exception the command gets SIGTERM, and after `shutdown_timeout` seconds SIGKILL, with all its descendants.
    """
    # Ranks never call Prefect's server, so they do not get its API key.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**inherited, "OMP_NUM_THREADS": str(job.settings.threads), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # one process group, so that a signal reaches torchrun and every rank
        close_fds=False,  # the job inherits its slot (tasks/core/gpu_queue.py) and keeps it if this process is killed
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            on_line(line.rstrip())
        return process.wait()
    except BaseException:
        _end_group(process, job.settings.shutdown_timeout, quietly(on_line))
        raise
    finally:
        process.stdout.close()


def wait_for_previous_job(job: Job, on_line: LogLineSink) -> None:
    """Wait while an earlier job, whose parent process was killed, saves; it holds the run folder's lock until then."""
    lock = filelock.FileLock(job.run / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        on_line(f"waiting until the previous job has saved and ended in {job.run}")
        with contextlib.suppress(filelock.Timeout):  # then another run holds it, and the ranks report that
            lock.acquire(timeout=job.settings.shutdown_timeout)
    lock.release()


def _end_group(process: "subprocess.Popen[str]", timeout: float, on_line: LogLineSink) -> None:
    """Send SIGTERM to torchrun, which forwards it and waits for the ranks to save; SIGKILL the rest after `timeout`."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Keeps reading, so that a full pipe cannot block the job while it saves.
        output, _ = process.communicate(timeout=timeout)
        for line in output.splitlines():
            on_line(line)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


register_launcher("torchrun", Launcher(run_local, on_this_machine=True, needs_endpoint=True))
