"""`run.json`: written atomically, kept over restarts, and hours that add up."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpt2train
from gpt2train.errors import RunError
from gpt2train.monitoring.run_record import read_record, record_flow
from gpt2train.runs.reading import read_run
from tests.gpt2train.runs.fake_runs import a_row, begin, make_run, write_rows
from tests.trained_run import TrainedRun


def cut_back(run: Path, step: int) -> None:
    """Remove the rows after the last checkpoint, as the engine does."""
    rows = [line for line in (run / "metrics.jsonl").read_text().splitlines() if json.loads(line)["step"] <= step]
    (run / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))


def test_a_flow_and_the_engine_write_into_one_record(tmp_path: Path) -> None:
    run = make_run(tmp_path / "out/runs/a", done=20)
    record_flow(run, "345m", {"tokenize": "ab:cd"}, {"processes": 8})
    begin(run, step=20)
    record = read_record(run)
    assert record is not None
    assert (record.preset, record.inputs, record.launch) == ("345m", {"tokenize": "ab:cd"}, {"processes": 8})
    assert [start.step for start in record.starts] == [0, 20]
    assert record.data[0].fingerprint == "0123456789abcdef" and record.data[0].tokens == 1_000_000
    assert record.starts[0].versions["gpt2train"] == gpt2train.__version__
    assert set(record.starts[0].versions) == {"gpt2train", "python", "torch"}
    checkout = (Path(gpt2train.__file__).parents[1] / ".git").exists()
    assert bool(record.starts[0].commit) == checkout
    assert not list(run.glob(".tmp-*"))


def test_hours_add_up_over_restarts_and_repeated_steps_count_each_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "out/runs/a", done=30, seconds=60)  # killed, its last checkpoint is that of step 20
    begin(run, step=20)
    begin(run, step=20)  # killed before it had cut the rows off, twice: they are counted once
    begin(run, step=20)
    cut_back(run, 20)
    begin(run, step=20)  # killed before its first row
    write_rows(run, [a_row(step, seconds=120) for step in range(21, 26)])
    begin(run, step=20)
    cut_back(run, 20)
    write_rows(run, [a_row(step, seconds=60) for step in range(21, 41)])
    found = read_run(run)
    assert found.repeated_hours * 3600 == pytest.approx(10 * 60 + 5 * 120)
    assert found.hours * 3600 == pytest.approx(40 * 60 + 10 * 60 + 5 * 120)
    assert found.step == 40


def test_a_foreign_record_is_set_aside_and_never_overwritten(tmp_path: Path) -> None:
    run = make_run(tmp_path / "out/runs/a")
    (run / "run.json").write_text("mine")
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        read_record(run)
    begin(run)
    assert (run / "run.json.unreadable").read_text() == "mine"
    record = read_record(run)
    assert record is not None and len(record.starts) == 1


def test_fields_of_a_later_release_are_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "out/runs/a")
    text = json.loads((run / "run.json").read_text())
    text["power"] = 5
    text["starts"][0]["carbon"] = 7
    (run / "run.json").write_text(json.dumps(text))
    begin(run)
    after = json.loads((run / "run.json").read_text())
    assert after["power"] == 5 and after["starts"][0]["carbon"] == 7 and len(after["starts"]) == 2


@pytest.mark.slow
def test_a_killed_writer_leaves_a_readable_record(tmp_path: Path) -> None:
    run = make_run(tmp_path / "out/runs/a")
    code = "import sys; from gpt2train.monitoring.run_record import record_flow\n"
    code += "while True: record_flow(sys.argv[1], 'x' * 999, {}, {})"
    for turn in range(4):
        writer = subprocess.Popen([sys.executable, "-c", code, str(run)], stderr=subprocess.DEVNULL)
        before = (run / "run.json").stat().st_mtime_ns
        while (run / "run.json").stat().st_mtime_ns == before:
            assert writer.poll() is None
        time.sleep(0.01 * turn)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        record = read_record(run)
        assert record is not None and record.preset == "x" * 999 and len(record.starts) == 1


def test_the_engine_records_its_start_and_trainings_without_a_flow_are_runs(trained_run: TrainedRun) -> None:
    found = read_run(trained_run.run)
    assert found.state == "finished" and found.step == 2
    assert found.record.starts[0].world == 1 and found.layout == "tp 1 x pp 1 x dp 1"
    assert found.data == found.record.data[0].identity and found.record.preset is None
    assert found.parameters == found.record.parameters and found.tokens == 2 * 2 * 64
    assert found.hours > 0 and found.loss is not None
