"""Jobs ended by a real Slurm: the time limit, a lost machine, too much memory."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.errors import RunError
from gpt2train.store.run_folder import newest_checkpoint
from tasks.train.launch.launchers import run_job
from tests.gpt2train.jobs import curve, write_tokens
from tests.processes import wait_for
from tests.tasks.train.launch.slurm_cluster import (
    NO_END,
    SECONDS,
    SETUP,
    STEPS,
    Slurm,
    job_of,
    number_of,
    slurm_cluster,
    steps_of,
)

pytestmark = pytest.mark.exhaustive

# A machine is lost after 10 s of silence; a job that takes more memory than it asked for is seen within a second.
SOON = """\
SlurmdTimeout=10
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=task=1
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=900"""
ONE = {"processes": 1, "nodes": 1}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster(SOON) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def asked(**slurm: object) -> dict[str, object]:
    return {**ONE, "slurm": {"setup": SETUP, "poll": 0.3, "partition": "main", **slurm}}


def test_a_job_at_its_time_limit_is_resumed_by_the_next(
    slurm: Slurm, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first saves ahead of its limit, the second hangs until Slurm ends it, the third is the last."""
    caplog.set_level(logging.INFO, "gpt2train")
    job = job_of(tokens, tmp_path / "run", asked(time_limit="1", save_before=10, resubmit=2), steps=NO_END)
    following = threading.Thread(target=run_job, args=(job,))
    following.start()
    wait_for(lambda: "resubmitting it (1 more" in caplog.text, 180, "a second job")
    first = read_manifest(newest_checkpoint(job.run)).position.step
    assert "ended: COMPLETED" in caplog.text and first > 0
    wait_for(lambda: steps_of(job) > first, SECONDS, "steps of the second job")
    rank = {"-m", "gpt2train.train", job.config}
    hung = [one for one in psutil.process_iter(["cmdline"]) if rank <= set(one.info["cmdline"] or ())]
    assert hung
    for process in hung:
        process.suspend()
    wait_for(lambda: "ended: TIMEOUT" in caplog.text, 180, "the time limit")
    wait_for(lambda: "resubmitting it (0 more" in caplog.text, 60, "a third job")
    following.join(180)
    assert not following.is_alive() and slurm.jobs() == []
    steps = curve(job.run, "step")
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > first


def test_a_time_limit_too_short_for_a_step_ends_after_two_jobs(
    slurm: Slurm, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpt2train")
    never = (*SETUP, "sleep 300")  # as a module that takes longer to load than the job may run
    job = job_of(tokens, tmp_path / "run", asked(time_limit="1", save_before=10, setup=never), steps=NO_END)
    with pytest.raises(RunError, match=r"without a new checkpoint, as did the previous one: .*time_limit"):
        run_job(job)
    assert caplog.text.count("submitted: ") == 2 and slurm.jobs() == []


@pytest.mark.parametrize("requeue", [True, False])
def test_a_job_on_a_lost_machine_is_resumed_on_another(
    slurm: Slurm, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, requeue: bool
) -> None:
    caplog.set_level(logging.INFO, "gpt2train")
    whole = job_of(tokens, tmp_path / "whole", asked())
    run_job(whole)
    caplog.clear()
    job = job_of(tokens, tmp_path / "run", asked(options=() if requeue else ("--no-requeue",)))
    following = threading.Thread(target=run_job, args=(job,))
    following.start()
    wait_for(lambda: steps_of(job) > 60, SECONDS, "steps of the first start")
    number = number_of(job)
    node = slurm.ask("squeue", "--noheader", f"--job={number}", "--format=%N")
    slurm.lose(node)
    if requeue:
        wait_for(lambda: "waits: BeginTime" in caplog.text, 120, "the job in the queue once more")
        slurm.ask("scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm would wait for two minutes
    following.join(SECONDS)
    assert not following.is_alive()
    slurm.start(node)
    if requeue:
        assert "requeued 1 time" in caplog.text and number_of(job) == number
    else:
        assert "ended: NODE_FAIL" in caplog.text and number_of(job) != number
    assert curve(job.run, "step") == list(range(1, STEPS + 1))
    assert curve(job.run) == curve(whole.run)


def test_too_much_memory_is_reported_with_the_remedy(slurm: Slurm, tokens: Path, tmp_path: Path) -> None:
    job = job_of(tokens, tmp_path / "run", asked(memory="100M"))
    with pytest.raises(RunError, match=r"ended with OUT_OF_MEMORY: .* a larger launch\.slurm\.memory"):
        run_job(job)
    assert slurm.jobs() == []
