"""Shutdown of the launcher: the time that ranks have to save, and its exit codes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import wait_for, wait_until_ended

# A rank without torch: writes a file when it runs, and on SIGTERM saves slowly.
RANK = """
import os, pathlib, signal, sys, time
from gpt2train.launch.exit_codes import LAUNCHER
from gpt2train.store.process import die_with_parent
die_with_parent(int(os.environ[LAUNCHER]))
folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def save(*_):
    (folder / "asked").touch()
    time.sleep(seconds)
    (folder / "saved").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
(folder / "ready").write_text(str(os.getpid()))
time.sleep(600)
"""
# The parent of a launcher, to be killed.
PARENT = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


class Job:
    """A launcher with one rank, under a parent of its own."""

    def __init__(self, folder: Path, save_seconds: float, grace: float | None) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "rank.py").write_text(RANK)
        with (folder / "said").open("w") as said:
            command = [sys.executable, "-c", PARENT, *self.launcher(grace, save_seconds)]
            self.parent = subprocess.Popen(command, stdout=said)

    def launcher(self, grace: float | None, save_seconds: float) -> list[str]:
        # The parent's id is known to its child alone: `sh` is replaced by the launcher.
        patience = "" if grace is None else f"--grace {grace}"
        words = f'--parent $PPID --lost 3 {patience} -- --standalone "$@"'
        command = ["sh", "-c", f'exec "{sys.executable}" -m gpt2train.launch {words}', "sh"]
        return [*command, str(self.folder / "rank.py"), str(self.folder), str(save_seconds)]

    def processes(self) -> list[psutil.Process]:
        """The launcher and its rank, once the rank runs."""
        wait_for(lambda: self.has("ready") and (self.folder / "ready").read_text(), 200, "the rank")
        rank = psutil.Process(int((self.folder / "ready").read_text()))
        return [psutil.Process(rank.ppid()), rank]

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()


@pytest.mark.exhaustive
def test_a_save_outlives_a_killed_parent_for_the_shutdown_timeout_at_most(tmp_path: Path) -> None:
    patient, hasty = Job(tmp_path / "a", 2.0, 60.0), Job(tmp_path / "b", 600.0, 2.0)
    ending: list[psutil.Process] = []
    for job in (patient, hasty):
        launcher, rank = job.processes()
        launcher.send_signal(signal.SIGTERM)
        wait_for(lambda job=job: job.has("asked"), 60, "the signal")
        job.parent.kill()
        ending += [launcher, rank]
    wait_until_ended(ending, 60)
    assert patient.has("saved") and not hasty.has("saved")
    for job in (patient, hasty):
        job.parent.wait()


@pytest.mark.exhaustive
def test_a_job_whose_parent_is_killed_saves_if_it_has_a_shutdown_timeout(tmp_path: Path) -> None:
    times = {"a": (2.0, 60.0), "b": (600.0, 2.0), "c": (1.0, None)}
    jobs = [Job(tmp_path / name, *seconds) for name, seconds in times.items()]
    saves, hasty, without_timeout = jobs
    processes = [process for job in jobs for process in job.processes()]
    for job in jobs:
        job.parent.kill()
    wait_until_ended(processes, 60)
    for job in jobs:
        job.parent.wait()
    assert saves.has("saved")
    assert hasty.has("asked") and not hasty.has("saved")
    assert not without_timeout.has("asked")


@pytest.mark.slow
def test_the_death_of_the_parent_is_no_second_stop_request(tmp_path: Path) -> None:
    job = Job(tmp_path / "a", 4.0, 60.0)
    launcher, rank = job.processes()
    launcher.send_signal(signal.SIGTERM)
    wait_for(lambda: job.has("asked"), 60, "the signal")
    time.sleep(1.5)  # signals within one second count as one request anyway
    job.parent.kill()
    wait_until_ended([launcher, rank], 60)
    job.parent.wait()
    assert job.has("saved")


@pytest.mark.slow
def test_a_lost_rank_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path / "a", 1.0, 60.0)
    _, rank = job.processes()
    rank.kill()
    assert job.parent.wait(60) == 3
