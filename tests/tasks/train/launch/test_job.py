"""A training job: its start, devices, errors by exit code, the launcher of a plug-in; its logs in the flow's."""

import json
import logging
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.config import TrainSettings, to_toml
from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.launch.exit_codes import RESUMES
from gpt2train.launch.rank_logs import read_line
from gpt2train.launch.rank_process import lock_run_folder
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.plan.devices import parse
from gpt2train.settings import build
from gpt2train.store.run_folder import newest_checkpoint
from tasks.train.launch import launchers, rank_logs
from tasks.train.launch.job import LOST, Job, LogLineSink, job_error, torchrun_arguments
from tasks.train.launch.launchers import run_job
from tasks.train.launch.local import run_local, wait_for_previous_job
from tasks.train.launch.rank_logs import RankLogs, level_of, tail_rank_logs
from tasks.train.launch.registry import Launcher, register_launcher
from tasks.train.launch.registry import launchers as registered
from tasks.train.launch.settings import LaunchSettings
from tests.gpt2train.jobs import make, write_tokens
from tests.processes import command_of, wait_for, wait_until_ended
from tests.tasks.plugin_page import ROOT, files_of, install, run

CONFIG = "/data/runs/demo-0123abcd/config.toml"


def test_one_machine_needs_no_rendezvous_address_and_several_meet_at_that_of_the_run() -> None:
    arguments = torchrun_arguments(Job(CONFIG, LaunchSettings(processes=4, restarts=3, timeout=60)))
    assert arguments[:5] == ["--standalone", "--nproc-per-node", "4", "--max-restarts", "3"]
    assert arguments[5:] == ["-m", "gpt2train.train", "--config", CONFIG, "--timeout", "60.0", "--quiet"]
    hosts = build(LaunchSettings, {"launcher": "ssh", "hosts": ["me@gpu01", "gpu02"], "processes": 16})
    for launch, nodes in ((LaunchSettings(processes=8, nodes=4, endpoint="gpu01:29500"), "4"), (hosts, "2")):
        arguments = torchrun_arguments(Job(CONFIG, launch))
        assert launch.world == 32
        assert arguments[:6] == ["--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", "gpu01:29500"]
        assert arguments[6:8] == ["--rdzv-id", "demo-0123abcd"] and "--standalone" not in arguments
    for wrong, message in (({}, "2 nodes need launch.endpoint"), ({"endpoint": "gpu01"}, "endpoint")):
        with pytest.raises(UserError, match=message):
            build(LaunchSettings, {"nodes": 2, **wrong})


@pytest.mark.parametrize(
    ("code", "last", "kind", "message"),
    [
        (2, "error: no such file: tokens.bin", UserError, r"^no such file: tokens.bin$"),
        (1, "error: rank 0: OutOfMemoryError: CUDA out of memory", RunError, r"^rank 0: OutOfMemoryError"),
        (1, "error: 10 steps in a row were skipped", RunError, r"saved yet, so the same command begins at step 0$"),
        (1, "Traceback", RunError, r"^the training job ended with exit code 1 "),
        (128 + 15, "stopped before training started", RunError, "exit code 143"),
        (LOST, f"error: rank 5 was killed{RESUMES}", TransientError, r"^rank 5 was killed \(logs: .*; no checkpoint"),
        (LOST, "error: rank 1 gave no sign of life", TransientError, "no sign of life"),
        (-9, "step 7", TransientError, r"^the training job ended with signal SIGKILL "),
    ],
)
def test_the_exit_code_decides_if_a_job_is_retried(code: int, last: str, kind: type[Exception], message: str) -> None:
    error = job_error(code, [last], Job(CONFIG, LaunchSettings()))
    assert type(error) is kind
    with pytest.raises(kind, match=message):
        raise error


def test_the_message_says_where_the_same_command_begins(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "config.toml"), LaunchSettings())
    draft = tmp_path / "checkpoints/step-00000004.tmp"
    draft.mkdir(parents=True)
    (draft / "manifest.json").write_text("{}")  # of a job that was killed while it saved
    assert "begins at step 0" in str(job_error(1, [], job))
    draft.rename(tmp_path / "checkpoints/step-00000004")
    assert str(job_error(LOST, [], job)).endswith("; the same command goes on from the last checkpoint")


def test_a_job_occupies_gpus_or_cores_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = parse("\n".join(f"{n}, GPU-{n}abc, NVIDIA H200, 143771" for n in range(4)))
    monkeypatch.setattr(launchers, "find_gpus", lambda: gpus)
    train = TrainSettings()
    assert launchers.devices_of(train, LaunchSettings(processes=2)) == ("GPU 0", "GPU 1")
    assert launchers.devices_of(train.model_copy(update={"device": "cpu"}), LaunchSettings()) == ("cores",)
    # As the engine does: with fewer GPUs than processes all train on the CPU.
    assert launchers.devices_of(train, LaunchSettings(processes=8)) == ("cores",)
    for launch in (LaunchSettings(launcher="slurm"), LaunchSettings(launcher="ssh", hosts=("node1",))):
        assert launchers.devices_of(TrainSettings(device="cpu"), launch) == ()


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


PAGE = "add-a-launcher.md"
SECONDS = 120.0


def ranks_of(process: psutil.Process) -> list[psutil.Process]:
    found = [child for child in process.children(recursive=True) if "-m gpt2train.train" in command_of(child)]
    return [child for child in found if "gpt2train.launch" not in command_of(child)]


@pytest.mark.slow
def test_the_launcher_of_the_page_runs_a_job_and_lets_it_save(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    config = make(write_tokens(tmp_path / "tokens"), tmp_path / "run", steps=1_000_000)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(to_toml(config))
    install(PAGE, tmp_path)
    settings = json.dumps(tomllib.loads(files_of(PAGE)["run.toml"])["launch"])
    command = [sys.executable, "-m", "tests.tasks.train.launch.submit_job", str(tmp_path / "run/config.toml"), settings]
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: read_metrics(tmp_path / "run"), SECONDS, "metrics")
        ranks = ranks_of(psutil.Process(process.pid))
        assert [rank.nice() for rank in ranks] == [min(19, psutil.Process().nice() + 15)] * 2
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130, printed
    assert read_manifest(newest_checkpoint(tmp_path / "run")).position.step > 0
    wait_until_ended(ranks)


def test_settings_of_the_launcher_are_checked(tmp_path: Path) -> None:
    install(PAGE, tmp_path)
    code = "import json, sys; from gpt2train.settings import build; "
    code += "from tasks.train.launch.settings import LaunchSettings; build(LaunchSettings, json.loads(sys.argv[1]))"
    wrong = run(code, json.dumps({"launcher": "nice", "nice": {"niceness": 20}}), plugins=tmp_path)
    assert "settings: nice.niceness: input should be less than or equal to 19 (got 20)" in wrong.stderr
    wrong = run(code, json.dumps({"launcher": "nise"}), plugins=tmp_path)
    assert "launcher: input should be 'torchrun', 'ssh', 'slurm' or 'nice' (got 'nise')" in wrong.stderr


def test_launchers_without_plug_ins_and_wrong_registrations() -> None:
    assert list(registered()) == ["torchrun", "ssh", "slurm"]
    with pytest.raises(UserError, match="launcher: input should be 'torchrun', 'ssh' or 'slurm' \\(got 'nice'\\)"):
        build(LaunchSettings, {"launcher": "nice"})
    for name, message in (("hosts", "is no setting"), ("nice", "must not import them")):
        with pytest.raises(UserError, match=message):
            register_launcher(name, Launcher(lambda job, on_line: 0))


Records = list[logging.LogRecord]
WRITE = """
import logging, sys
from pathlib import Path
from gpt2train.launch.rank_logs import log_to
log_to(Path(sys.argv[1]), int(sys.argv[2]), screen=sys.argv[3] == "screen")
log = logging.getLogger("gpt2train")
log.info("step 1/8 | loss 6.5")
log.warning("step 2 skipped: a spike")
try:
    raise ValueError("bad")
except ValueError:
    log.error("rank 1: ValueError: bad", exc_info=True)
"""
HEAD = "2026-01-02 03:04:05.678Z"


@pytest.fixture
def seen() -> Iterator[Records]:
    records: Records = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger, level = logging.getLogger("gpt2train"), logging.getLogger("gpt2train").level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(level)


def words(records: Records) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in records]


def write(folder: Path, rank: int, *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"rank-{rank}.log").open("a") as file:
        file.write("".join(f"{HEAD} {line}\n" for line in lines))


def test_lines_of_a_rank_are_read_with_level_and_time(tmp_path: Path) -> None:
    script = [sys.executable, "-c", WRITE, str(tmp_path), "0"]
    shown = subprocess.run([*script, "screen"], capture_output=True, text=True, check=True)
    quiet = subprocess.run([*script, "quiet"], capture_output=True, text=True, check=True)
    assert shown.stdout == "step 1/8 | loss 6.5\nstep 2 skipped: a spike\n" and quiet.stdout == ""
    lines = (tmp_path / "rank-0.log").read_text().splitlines()
    found = [line for line in map(read_line, lines) if line]
    assert len(found) == 6 and len(lines) > 6  # the tracebacks are no lines of their own
    assert [line.level for line in found[3:]] == [logging.INFO, logging.WARNING, logging.ERROR]
    assert found[4].message == "step 2 skipped: a spike"
    assert abs(found[0].time - (tmp_path / "rank-0.log").stat().st_mtime) < 60


def test_rank_0_is_logged_in_full_and_of_others_only_warnings(tmp_path: Path, seen: Records) -> None:
    write(tmp_path, 0, "INFO attempt 0: of an earlier attempt")
    with tail_rank_logs(tmp_path):
        write(tmp_path, 0, "INFO attempt 0: step 1/8", "WARNING attempt 0: warning: 9.0 epochs of a corpus")
        write(tmp_path, 1, "INFO attempt 0: not of interest", "WARNING attempt 0: the disk is slow", "Traceback …")
        write(tmp_path, 2, "ERROR attempt 1: could not save")
    warnings = ["WARNING 9.0 epochs of a corpus", "WARNING rank 1: the disk is slow"]
    assert words(seen) == ["INFO step 1/8", *warnings, "ERROR rank 2: could not save"]
    assert read_line(f"{HEAD} INFO attempt 0: x\n").time == seen[0].created  # type: ignore[union-attr]


def test_a_line_written_in_two_pieces_is_logged_once(tmp_path: Path, seen: Records) -> None:
    logs = RankLogs(tmp_path)
    write(tmp_path, 0, "INFO attempt 0: one")
    logs.poll()
    with (tmp_path / "rank-0.log").open("a") as file:
        file.write(f"{HEAD} INFO attempt 0: tw")
    logs.poll()
    with (tmp_path / "rank-0.log").open("a") as file:
        file.write("o\n")
    logs.poll()
    logs.poll(True)
    assert words(seen) == ["INFO one", "INFO two"]


def test_an_error_that_the_launcher_reported_is_not_logged_again(tmp_path: Path, seen: Records) -> None:
    logs = RankLogs(tmp_path)
    for rank in range(3):
        write(tmp_path, rank, "ERROR attempt 0: error: no space left")
    logs.poll()
    assert words(seen) == []  # it may be on its way
    logs.forward_printed("error: no space left")
    logs.leave_to("no space left (logs: …)")  # the caller raises it
    write(tmp_path, 1, "ERROR attempt 0: something else")
    logs.poll(True)
    assert words(seen) == ["ERROR rank 1: something else"]


@pytest.mark.parametrize(("code", "kind"), [(LOST, TransientError), (1, RunError)])
def test_the_error_that_ends_a_job_is_raised_and_not_logged(
    tmp_path: Path, seen: Records, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[RunError]
) -> None:
    """Also one that may pass: the flow logs it as a warning before a retry, and without retries it ends the command."""

    def run(_job: Job, on_line: LogLineSink) -> int:
        on_line("error: rank 1 on gpu02 was killed")
        return code

    monkeypatch.setattr("tasks.train.launch.launchers.launchers", lambda: {"torchrun": Launcher(run)})
    with pytest.raises(kind, match=r"^rank 1 on gpu02 was killed .*begins at step 0$") as caught:
        run_job(Job(str(tmp_path / "config.toml"), LaunchSettings()))
    assert type(caught.value) is kind and words(seen) == []


def test_an_error_that_does_not_end_the_job_is_logged(
    tmp_path: Path, seen: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = RankLogs(tmp_path)
    logs.forward_printed("error: rank 1 on gpu02 was killed")
    logs.poll()
    assert words(seen) == []  # it may be the reason of the job's end
    logs.forward_printed("warning: restarting all ranks: 1 of 3")
    expected = ["ERROR rank 1 on gpu02 was killed", "WARNING restarting all ranks: 1 of 3"]
    assert words(seen) == expected
    logs.forward_printed("error: slow")
    monkeypatch.setattr("tasks.train.launch.rank_logs.HOLD_SECONDS", 0.0)
    logs.poll()
    assert words(seen) == [*expected, "ERROR slow"]
    logs.forward_printed("error: another")
    logs.leave_to("no GPU memory left")
    logs.poll(True)
    assert words(seen)[-1] == "ERROR another"


def test_equal_lines_of_ranks_are_merged_and_not_repeated(tmp_path: Path, seen: Records) -> None:
    logs = RankLogs(tmp_path)
    for rank in (*range(3), *range(7, 1000)):
        write(tmp_path, rank, "WARNING attempt 0: lost a peer")
    logs.poll(True)
    assert words(seen) == ["WARNING ranks 0-2, 7-999: lost a peer"]
    seen.clear()
    write(tmp_path, 0, "WARNING attempt 0: warning: 9.0 epochs")
    logs.poll(True)
    write(tmp_path, 1, "WARNING attempt 0: warning: 9.0 epochs", "WARNING attempt 0: slow disk")
    logs.poll(True)
    write(tmp_path, 1, "WARNING attempt 0: slow disk")  # the same rank again: that is news
    logs.poll(True)
    assert words(seen) == ["WARNING 9.0 epochs", "WARNING rank 1: slow disk", "WARNING rank 1: slow disk"]


def test_a_flood_of_lines_is_cut_and_counted(tmp_path: Path, seen: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_logs, "LINES_PER_SECOND", 0.0)
    logs = RankLogs(tmp_path)
    for rank in range(50):
        write(tmp_path, rank, *(f"WARNING attempt 0: number {rank}.{i}" for i in range(20)))
    write(tmp_path, 0, *(f"INFO attempt 0: step {step}" for step in range(8)))
    logs.poll(True)
    said = words(seen)
    assert len([line for line in said if line.startswith("WARNING")]) == rank_logs.BURST
    assert "INFO step 7" in said  # warnings do not count against the lines of rank 0
    assert said[-1] == f"INFO … {1000 - int(rank_logs.BURST):,} more lines in {tmp_path}"


def test_of_a_fast_growing_file_the_newest_lines_are_read(
    tmp_path: Path, seen: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_logs, "MAX_BYTES", 1000)
    logs = RankLogs(tmp_path)
    write(tmp_path, 0, *(f"INFO attempt 0: step {step:04}" for step in range(500)))
    logs.poll(True)
    said = words(seen)
    assert said[-2] == "INFO step 0499" and len(said) < 25
    assert "more lines in" in said[-1]


def test_lines_of_the_launcher_keep_their_level() -> None:
    assert level_of("error: no such file") == (logging.ERROR, "no such file")
    assert level_of("warning: restarting all ranks") == (logging.WARNING, "restarting all ranks")
    assert level_of("an error: quoted") == (logging.INFO, "an error: quoted")
