"""torchrun on this machine: a job in a session of its own, ended as a whole."""

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable

import filelock

from tasks.launch.job import LOST, Job, torchrun_arguments

log = logging.getLogger("gpt2train")


def run_local(job: Job, tell: Callable[[str], None]) -> int:
    """Run torchrun here to its end; the exit code. See `tasks.launch.Launcher`."""
    wait_for_the_one_before(job, tell)
    arguments = torchrun_arguments(job)
    ways = ["--parent", str(os.getpid()), "--lost", str(LOST), "--grace", str(job.settings.grace)]
    command = [sys.executable, "-m", "gpt2train.launch", *ways, "--", *arguments]
    if job.settings.nodes > 1:
        log.info("start on each other machine: python -m gpt2train.launch -- %s", shlex.join(arguments))
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.settings.threads), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # one process group, so that a signal reaches torchrun and every rank
        close_fds=False,  # the job holds its turn (tasks/turns.py) to its own end, even if this process is killed
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            tell(line.rstrip())
        return process.wait()
    except BaseException:
        _end_group(process, job.settings.grace, tell)
        raise
    finally:
        process.stdout.close()


def wait_for_the_one_before(job: Job, tell: Callable[[str], None]) -> None:
    """Give a job that lost the process which started it the time to save; it holds the run folder until then."""
    lock = filelock.FileLock(job.run / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        tell(f"waiting until the job before this one has saved and ended in {job.run}")
        with contextlib.suppress(filelock.Timeout):  # whoever holds it then is another's: the ranks say so
            lock.acquire(timeout=job.settings.grace)
    lock.release()


def _end_group(process: "subprocess.Popen[str]", grace: float, tell: Callable[[str], None]) -> None:
    """SIGTERM to torchrun, which passes it on and waits for the ranks to save; SIGKILL to whatever is left."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Keeps reading, so that a full pipe cannot block the job while it saves.
        last_words, _ = process.communicate(timeout=grace)
        for line in last_words.splitlines():
            tell(line)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
