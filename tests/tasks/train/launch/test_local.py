"""The torchrun launcher on this machine: the wait for a previous job of the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpt2train.launch.rank_process import lock_run_folder
from tasks.train.launch.job import Job
from tasks.train.launch.local import run_local, wait_for_previous_job
from tasks.train.launch.settings import LaunchSettings

SAVES = """
import sys, time
from pathlib import Path
from gpt2train.launch.rank_process import lock_run_folder
with lock_run_folder(Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.read()
    time.sleep(0.5)
"""


@pytest.mark.exhaustive
def test_the_next_job_waits_while_the_previous_one_saves(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "config.toml"), LaunchSettings(processes=1))
    waits = f"waiting until the previous job has saved and ended in {tmp_path}"
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    before = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert before.stdin is not None and before.stdout is not None and before.stdout.readline() == "holds\n"
    logged: list[str] = []

    def log(line: str) -> None:
        logged.append(line)
        before.stdin.close()  # type: ignore[union-attr]  # it ends when it has been waited for

    code = run_local(job, log)
    assert before.poll() == 0
    assert code == 2 and logged[0] == waits and "config.toml" in logged[-1]  # which is not there

    with lock_run_folder(tmp_path):  # not for ever
        wait_for_previous_job(Job(job.config, LaunchSettings(processes=1, shutdown_timeout=0.5)), logged.append)
    assert logged[2:] == [waits]
    wait_for_previous_job(job, logged.append)
    assert logged[3:] == []
