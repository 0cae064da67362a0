"""Scripts for Slurm and its output, and training under a real Slurm: requeued, preempted, resumed, cancelled."""

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
from gpt2train.settings import build
from gpt2train.store.run_folder import newest_checkpoint
from tasks.train.launch.job import Job
from tasks.train.launch.launchers import LaunchSettings, check_launcher, run_job
from tasks.train.launch.slurm import controller
from tasks.train.launch.slurm.controller import State, read_state
from tasks.train.launch.slurm.follow import Output
from tasks.train.launch.slurm.run import check_slurm
from tasks.train.launch.slurm.script import script
from tests.gpt2train.jobs import curve, write_tokens
from tests.processes import wait_for
from tests.tasks.train.launch.slurm_cluster import (
    NO_END,
    SECONDS,
    STEPS,
    Slurm,
    job_of,
    number_of,
    slurm_cluster,
    steps_of,
)

LINE = (
    "JobId=3 JobName=gpt2train-run UserId=me(7) Priority=1 JobState=PENDING Reason=BeginTime Dependency=(null) "
    "Requeue=1 Restarts=2 BatchFlag=1 ExitCode=0:15 RunTime=00:00:00 ReqNodeList=(null) NodeList=n[1-2] BatchHost=n1 "
    "Command=/data/a run/slurm.sh WorkDir=/data StdErr=/data/a run/logs/slurm-3.out Power="
)


def job(run: Path, **slurm: object) -> Job:
    settings = {"launcher": "slurm", "processes": 8, "nodes": 4, "threads": 2, "restarts": 3, "slurm": slurm}
    return Job(str(run / "config.toml"), build(LaunchSettings, settings))


def test_the_script_contains_all_settings(tmp_path: Path) -> None:
    asked = {"partition": "gpu", "account": "lab", "qos": "high", "time_limit": "1-00:00:00", "gpus": 8, "memory": "0"}
    more = {"options": ["--exclusive", "--constraint=h100"], "setup": ["module load cuda"], "python": "python3"}
    text = script(job(tmp_path / "100% of it", **asked, **more, cpus=64, save_before=300))
    lines = text.splitlines()
    given = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH ")}
    assert {"nodes=4", "ntasks-per-node=1", "cpus-per-task=64", "gpus-per-node=8", "mem=0"} <= given
    assert {"partition=gpu", "account=lab", "qos=high", "time=1-00:00:00", "signal=TERM@300"} <= given
    assert {"requeue", "open-mode=append", "exclusive", "constraint=h100"} <= given
    assert f'output="{tmp_path}/100%% of it/logs/slurm-%j.out"' in given
    assert lines.index("module load cuda") < lines.index("export OMP_NUM_THREADS=2 PYTHONUNBUFFERED=1")
    assert lines[-1].startswith("    python3 -m gpt2train.launch --lost 3 -- --nproc-per-node 8 --max-restarts 3 -m ")
    assert "exec srun --cpus-per-task=64 " in text and "rdzv" not in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_script_leaves_out_unset_settings(tmp_path: Path) -> None:
    text = script(job(tmp_path))
    names = {line.removeprefix("#SBATCH --").partition("=")[0] for line in text.splitlines() if "#SBATCH " in line}
    ours = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "signal", "requeue", "open-mode", "output"}
    assert names == {*ours, "chdir"}
    assert "--cpus-per-task=16" in text and "setup" not in text


def test_a_failing_setup_command_is_named(tmp_path: Path) -> None:
    text = script(job(tmp_path, setup=["true", "false", "echo never"], python="true"))
    done = subprocess.run(["bash"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: launch.slurm.setup: exit code 1 of: false\n"


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"options": ["--output=/elsewhere"]}, "--output is not allowed in options"),
        ({"options": ["-p gpu"]}, "not a long option"),
        ({"options": ["--comment=a\nrm"]}, "not a long option"),
        ({"setup": ["a\nb"]}, "more than one line"),
        ({"time_limit": "tomorrow"}, "time_limit"),
        ({"partition": "gpu queue"}, "partition"),
    ],
)
def test_settings_that_give_no_valid_script_are_refused(slurm: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        job(tmp_path, **slurm)
    with pytest.raises(UserError, match="a quote"):  # a folder that sbatch cannot write
        script(job(tmp_path / "it's"))


def test_the_state_of_a_job_is_parsed() -> None:
    state = read_state(LINE)
    assert state == State("PENDING", "BeginTime", -15, 2, "n[1-2]", "/data/a run/slurm.sh") and not state.ended
    done = read_state(LINE.replace("PENDING", "FAILED").replace("0:15", "2:0").replace("n[1-2]", "(null)"))
    assert (done.name, done.code, done.nodes, done.ended) == ("FAILED", 2, "", True)


OUT_OF_MEMORY = (
    "StepId=1.0 exceeded memory limit (325660672 > 104857600), being killed",
    "Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
)


def test_output_is_passed_on_as_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    output = Output(path)
    assert output.lines() == []
    path.write_bytes("grün\nsrun: error: n1: task 0: Exi".encode())
    assert output.lines() == ["grün"]
    with path.open("ab") as file:
        file.write(b"ted\nerror: the cause\nunfinished")
    assert output.lines() == ["srun: n1: task 0: Exited", "error: the cause"]
    assert output.lines(last=True) == ["unfinished"] and output.lines() == []
    assert output.cause is None  # the engine reported it


@pytest.mark.parametrize(
    ("said", "cause", "out_of_memory"),
    [
        (
            "slurmstepd-n1: error: execve(): python: No such file",
            "slurmstepd-n1: execve(): python: No such file",
            False,
        ),
        *((f"slurmstepd-n1: error: {said}", f"slurmstepd-n1: {said}", True) for said in OUT_OF_MEMORY),
        *((f"error: {said}", None, False) for said in OUT_OF_MEMORY),  # a line of ours
    ],
)
def test_slurm_names_a_cause_of_its_own(tmp_path: Path, said: str, cause: str | None, out_of_memory: bool) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text(f"slurmstepd-n1: error: *** STEP 7.0 ***\n{said}\n")
    output = Output(path)
    output.lines()
    assert (output.cause, output.out_of_memory) == (cause, out_of_memory)


def test_following_a_job_again_logs_its_last_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text("".join(f"line {n}\n" for n in range(5000)))
    lines = Output(path, fresh=False).lines()
    assert lines[-1] == "line 4999" and 20 < len(lines) < 500 and all(line.startswith("line ") for line in lines)
    path.write_text("first\nsecond\n")
    assert Output(path, fresh=False).lines() == ["first", "second"]


def test_a_missing_slurm_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no sbatch on this machine; start it on a login node"):
        run_job(job(tmp_path))
    with pytest.raises(UserError, match="there is no sbatch"):
        check_launcher(job(tmp_path).settings, str(tmp_path))
    check_launcher(LaunchSettings(), str(tmp_path))


def test_a_folder_that_is_not_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where jobs run on other machines; fake commands, since a real Slurm here runs jobs here."""
    for name in ("sbatch", "scontrol", "squeue", "scancel"):
        (tmp_path / name).symlink_to("/bin/true")
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho gpu01.cluster\necho gpu02.cluster\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(UserError, match="is local to this machine"):
        check_slurm(Path("/tmp/run"))
    monkeypatch.setattr("socket.gethostname", lambda: "gpu02")
    check_slurm(Path("/tmp/run"))


def test_a_job_inherits_no_secret_and_no_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\necho '12;cluster'\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    given = {"PREFECT_API_KEY": "secret", "SLURM_NTASKS": "3", "SLURM_CONF": "/etc/here", "SBATCH_QOS": "low"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert controller.submit(tmp_path / "slurm.sh") == 12
    seen = (tmp_path / "seen").read_text()
    assert "SLURM_CONF=/etc/here" in seen and "SBATCH_QOS=low" in seen
    assert "PREFECT_API_KEY" not in seen and "SLURM_NTASKS" not in seen


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


@pytest.mark.slow
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
@pytest.mark.slow
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


@pytest.mark.slow
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
