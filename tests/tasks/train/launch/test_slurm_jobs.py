"""Training under a real Slurm: followed, requeued, preempted, resumed, cancelled, refused."""

import contextlib
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.errors import UserError
from gpt2train.store.run_folder import newest_checkpoint
from tasks.train.launch.job import Job
from tasks.train.launch.launchers import run_job
from tests.gpt2train.jobs import curve, write_tokens
from tests.processes import wait_for
from tests.tasks.train.launch.slurm_cluster import Slurm, slurm_cluster
from tests.tasks.train.launch.slurm_jobs import NO_END, SECONDS, STEPS, job_of, number_of, steps_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def start_flow(job: Job, log: Path) -> "subprocess.Popen[bytes]":
    """Run a job from a process of its own, which can be killed."""
    command = [sys.executable, "-m", "tests.tasks.train.launch.submit_job", job.config, job.settings.model_dump_json()]
    with log.open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=_restore_sigint)


def _restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_requeued_and_preempted_job_gives_the_same_losses(
    slurm: Slurm, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpt2train")
    whole = job_of(tokens, tmp_path / "a run 100%", steps=STEPS)
    run_job(whole)
    said = caplog.text
    assert "submitted: " in said and "runs on n[1-2]" in said and "ended: COMPLETED" in said
    assert f"step {STEPS}" in said, said  # a line of the first rank, from the job's output
    assert curve(whole.run, "step") == list(range(1, STEPS + 1)) and slurm.jobs() == []

    caplog.clear()
    cut = job_of(tokens, tmp_path / "cut")
    following = threading.Thread(target=run_job, args=(cut,))
    following.start()
    wait_for(lambda: steps_of(cut) > 60, SECONDS, "steps of the first start")
    number = number_of(cut)
    slurm.ask("scontrol", "requeue", number)
    wait_for(lambda: "waits: BeginTime" in caplog.text, SECONDS, "the job in the queue once more")
    before = steps_of(cut)
    slurm.ask("scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm would wait for two minutes
    wait_for(lambda: steps_of(cut) > before + 30, SECONDS, "steps of the second start")
    urgent = ("--partition=urgent", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--output=/dev/null")
    slurm.ask("sbatch", *urgent, "--wrap=sleep 1")
    following.join(SECONDS)
    said = caplog.text
    assert f"Slurm job {number} runs on n[1-2], requeued 1 time" in said
    assert "it ended early: resubmitting it" in said and number_of(cut) != number
    assert 60 < before < STEPS, before
    assert curve(cut.run, "step") == list(range(1, STEPS + 1))
    assert curve(cut.run) == curve(whole.run)


@pytest.mark.exhaustive
def test_a_restarted_flow_finds_its_job_and_can_cancel_it(slurm: Slurm, tokens: Path, tmp_path: Path) -> None:
    job = job_of(tokens, tmp_path / "run", {"processes": 2, "nodes": 1}, steps=NO_END)
    killed = start_flow(job, tmp_path / "first.log")
    wait_for(lambda: steps_of(job) > 0, SECONDS, "the first step")
    killed.kill()
    killed.wait()
    number = number_of(job)
    assert slurm.jobs() == [number]

    again = start_flow(job, tmp_path / "second.log")
    with contextlib.ExitStack() as stack:
        stack.callback(again.kill)
        wait_for(lambda: "runs on" in (tmp_path / "second.log").read_text(), SECONDS, "the job to be followed")
        assert slurm.jobs() == [number] and number_of(job) == number
        reached = steps_of(job)
        again.send_signal(signal.SIGINT)
        assert again.wait(SECONDS) == 130, (tmp_path / "second.log").read_text()
    assert slurm.jobs() == []
    said = (tmp_path / "second.log").read_text()
    assert f"Slurm job {number} of this run exists already" in said and "to save and end" in said
    saved = read_manifest(newest_checkpoint(job.run)).position.step
    assert saved >= reached and saved % 50, saved  # not one of those that are due
    assert "ExitCode=0:0" in slurm.ask("scontrol", "-o", "show", "job", number)


def test_mistakes_are_reported_in_one_line(slurm: Slurm, tokens: Path, tmp_path: Path) -> None:
    wrong = job_of(tokens, tmp_path / "partition", {"slurm": {"partition": "nowhere"}})
    with pytest.raises(
        UserError, match=r"sbatch refuses the job: invalid partition specified: nowhere .*launch\.slurm"
    ):
        run_job(wrong)
    long = job_of(tokens, tmp_path / "long", {"slurm": {"time_limit": "2:00:00", "poll": 0.3}})
    with pytest.raises(UserError, match=r"never start job .*: PartitionTimeLimit; change launch"):
        run_job(long)
    assert slurm.jobs() == []
    python = job_of(tokens, tmp_path / "python", {"slurm": {"python": "/nowhere/python", "poll": 0.3}})
    with pytest.raises(UserError, match=r"execve\(\): /nowhere/python: No such file"):
        run_job(python)
    layout = {"parallel": {"tp": 3}}
    heads = job_of(tokens, tmp_path / "layout", {"processes": 2, "nodes": 1}, **layout)
    with pytest.raises(UserError, match="tp 3 x pp 1 = 3 does not divide the 2 processes"):
        run_job(heads)
