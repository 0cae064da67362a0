"""Killed and interrupted pipelines, run again: the same bytes, and no process left."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import Finished
from tests.flows.mini_pipeline import Mini, hashes
from tests.processes import has_ended, wait_for
from tests.tasks.kill_points import FOLDERS


def long_training() -> list[str]:
    return ["--train.steps", "2000", "--train.checkpoints.interval", "5"]


# tests/tasks/test_kills.py kills each step at each instant, in a tenth of the time
@pytest.mark.exhaustive
def test_data_steps_killed_and_run_again_give_the_same_bytes(finished: Finished, site: object, tmp_path: Path) -> None:
    mini = finished.mini.another(tmp_path / "mini")
    output = tmp_path / "out"
    kill_after(mini, output, 0.75)
    on = mini.run("dataprep", "--output", str(output))
    assert on.returncode == 0, on.stderr
    assert hashes(output / "tokens") == hashes(finished.output / "tokens")


def kill_after(mini: Mini, output: Path, share: float) -> None:
    """Kill -9 the flow when this share of the data steps has begun, counted by their folders."""
    process = mini.start("dataprep", "--output", str(output))
    wanted = FOLDERS[int(share * (len(FOLDERS) - 1))]  # the report comes last
    wait_for(lambda: (output / wanted).exists() or process.poll() is not None, 120, wanted)
    assert process.poll() is None, (mini.folder / "started.log").read_text()
    mini.kill(process)


@pytest.mark.slow
def test_a_flow_killed_in_training_leaves_no_rank_and_loses_no_step(finished: Finished, tmp_path: Path) -> None:
    mini, output = finished.mini, finished.output
    before = set(output.glob("runs/*"))
    process = mini.start("pretrain", "--output", str(output), *long_training())
    wait_for(
        lambda: set(output.glob("runs/*/checkpoints/latest")) - {b / "checkpoints/latest" for b in before}, 90, "a save"
    )
    ranks = mini.ranks()
    assert len(ranks) == 2
    mini.kill(process)
    assert process.returncode == -signal.SIGKILL
    assert all(map(has_ended, ranks))
    (run,) = set(output.glob("runs/*")) - before
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert int((run / "checkpoints/latest").read_text().split("-")[1]) == last


@pytest.mark.exhaustive
def test_ctrl_c_saves_and_the_same_command_resumes(finished: Finished, tmp_path: Path) -> None:
    mini, output = finished.mini, finished.output
    flags = ["--output", str(output), "--train.steps", "1500", "--train.checkpoints.interval", "700"]
    before = set(output.glob("runs/*"))
    process = mini.start("pretrain", *flags)
    wait_for(lambda: any(is_training_run(run, 20) for run in set(output.glob("runs/*")) - before), 90, "some steps")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    mini.wait_for_the_end()
    log = (mini.folder / "started.log").read_text()
    assert "error: interrupted" in log and "Traceback" not in log
    (run,) = set(output.glob("runs/*")) - before
    saved = int((run / "checkpoints" / "latest").read_text().split("-")[1])
    assert 20 <= saved < 700

    on = mini.start("pretrain", *flags)
    wait_for(lambda: f"resuming from step {saved}" in (mini.folder / "started.log").read_text(), 60, "the resume")
    on.send_signal(signal.SIGINT)
    on.wait(60)
    mini.wait_for_the_end()


def is_training_run(run: Path, rows: int) -> bool:
    """True if a run folder has this many rows of metrics."""
    path = run / "metrics.jsonl"
    return path.exists() and len(path.read_text().splitlines()) >= rows


def test_marked_processes_are_found(finished: Finished) -> None:
    """The check for orphans can fail: a process that carries the mark is found."""
    program = [sys.executable, "-c", "import time; time.sleep(99)"]
    with subprocess.Popen(program, env=finished.mini.environ()) as process:
        wait_for(lambda: any(child.pid == process.pid for child in finished.mini.children()), 60, "the marked process")
        assert process.pid in {child.pid for child in finished.mini.children()} and process.poll() is None
        process.kill()
    finished.mini.wait_for_the_end()
