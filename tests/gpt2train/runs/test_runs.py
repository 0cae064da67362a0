"""`gpt2train runs` and the record of a run: search, table, damaged runs; atomic writes, restarts, hours that add up."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import filelock
import pytest

import gpt2train
from gpt2train.cli import app, run_command
from gpt2train.convert.card_scores import LAMBADA_SHA256
from gpt2train.errors import RunError
from gpt2train.monitoring.run_record import read_record, record_flow
from gpt2train.runs.reading import find_runs, read_run, read_runs
from gpt2train.runs.table import KEYS, differences, sort_runs, table_rows
from tests.gpt2train.runs.fake_runs import LAMBADA, WIKITEXT, a_row, begin, make_run, write_rows
from tests.trained_run import TrainedRun


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output folder with three runs: one finished and scored, one stopped, one just made."""
    runs = tmp_path / "out" / "runs"
    make_run(runs / "tiny-1", evaluated=True)
    make_run(runs / "tiny-2", done=40, level=2.0, settings={"optimizer": {"lr": 0.01}})
    make_run(runs / "tiny-3", done=0)
    return tmp_path / "out"


def test_an_output_its_runs_folder_and_a_run_are_all_accepted(out: Path, tmp_path: Path) -> None:
    names = ["tiny-1", "tiny-2", "tiny-3"]
    for folder in (tmp_path, out, out / "runs"):
        assert [found.name for found in find_runs(folder)] == names
    assert [run.name for run in read_runs([out / "runs" / "tiny-2"])[0]] == ["tiny-2"]
    assert [run.name for run in read_runs([out, out / "runs", out / "runs" / "tiny-2"])[0]] == names
    # Two runs of one name get distinct names, and their paths are no difference between them.
    assert differences(read_runs([out])[0]).keys() == {"optimizer.lr"}
    make_run(tmp_path / "other" / "runs" / "tiny-1")
    assert [run.name for run in read_runs([tmp_path])[0]] == ["other/tiny-1", "out/tiny-1", "tiny-2", "tiny-3"]
    assert differences(read_runs([tmp_path])[0]).keys() == {"optimizer.lr"}


def test_the_table_describes_each_run(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["runs", str(out), "--sort", "name"]) == 0
    head, first, second, third, _, *different = capsys.readouterr().out.splitlines()
    assert head.split()[:6] == ["run", "state", "data", "tokens", "parameters", "layout"]
    for said in ("finished", "01234567", "25.6k", "tp 1 x pp 1 x dp 2", "25.00%", "41.50", "37.25", "1.00"):
        assert said in first, said
    assert "stopped at 40 of 100" in second and "25.00%" not in second
    assert "not begun at 0 of 100" in third
    rows = [["different", "tiny-1", "tiny-2", "tiny-3"], ["optimizer.lr", "0.0006", "0.01", "0.0006"]]
    assert [line.split() for line in different] == rows


def test_the_last_scores_of_tasks_are_columns(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run has its own tasks; a step without scores, or one that is not finite, does not hide the last score."""
    names = ("hellaswag_accuracy", "hellaswag_accuracy_norm", "mine_word_perplexity", "core_centred")
    for at, values in enumerate([(0.2, 0.25, 200.0, -0.01), (0.3, 0.35, 120.5, 0.0125)]):
        scores = {f"valid_task_{name}": value for name, value in zip(names, values, strict=True)}
        write_rows(out / "runs" / "tiny-1", [{**a_row(101 + at), **scores}])
    write_rows(out / "runs" / "tiny-1", [{**a_row(103), "valid_task_core_centred": None}])
    write_rows(out / "runs" / "tiny-2", [{**a_row(41), "valid_task_other_bits_per_byte": 1.75}])
    assert run_command(app, ["runs", str(out), "--sort", "name"]) == 0
    head, first, second, third, *_ = capsys.readouterr().out.splitlines()
    order = ("hellaswag acc", "hellaswag norm", "mine word ppl", "core centred", "other bits/byte", "hours")
    places = [head.index(name) for name in order]
    assert places == sorted(places)
    assert all(said in first for said in ("30.00%", "35.00%", "120.50", "0.0125")) and "25.00%" in first
    assert "1.7500" in second and "30.00%" not in second and "1.7500" not in first + third
    assert run_command(app, ["runs", str(out), "--json", "--sort", "name"]) == 0
    shown = json.loads(capsys.readouterr().out)["runs"]
    assert [run["task_scores"].get("core_centred") for run in shown] == [0.0125, None, None]


def test_many_runs_are_grouped_by_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(9):
        make_run(tmp_path / "out/runs" / f"r{number}", steps=20, settings={"seed": min(number, 2)})
    assert run_command(app, ["runs", str(tmp_path), "--sort", "name"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "seed  0: r0; 1: r1; 2: 7 runs"


def test_a_locked_run_is_running_and_reading_never_blocks_the_lock(out: Path) -> None:
    run = out / "runs" / "tiny-2"
    with filelock.FileLock(run / ".lock"):
        assert read_run(run).state == "running"
    (run / ".lock").touch()
    assert read_run(run).state == "stopped"
    with filelock.FileLock(run / ".lock", timeout=0):
        pass


@pytest.mark.parametrize("key", KEYS)
def test_sorting_puts_the_best_first_and_missing_values_last(out: Path, key: str) -> None:
    runs = sort_runs(read_runs([out])[0], key)  # type: ignore[arg-type]
    value, descending = KEYS[key]
    known = [value(run) for run in runs if value(run) is not None]
    assert known == sorted(known, reverse=descending)
    assert [value(run) for run in runs][: len(known)] == known and len(runs) == 3


def test_scores_on_different_passages_have_columns_of_their_own(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LAMBADA is OpenAI's file, or another copy of all of its passages; any other set is named by its hash."""
    sets = {
        "tiny-1": {"data": "lambada_test.jsonl", "data_sha256": LAMBADA_SHA256, "passages": 5153},
        "tiny-2": {"data": "cloze.jsonl", "data_sha256": "1a" * 32, "passages": 192},
        "tiny-3": {"data": "cloze.jsonl", "data_sha256": "2b" * 32, "passages": 5153},
        "tiny-4": {"data": "LAMBADA-test.jsonl", "data_sha256": "3c" * 32, "passages": 5153},
        "tiny-5": {"data": "my.jsonl", "data_sha256": "1a" * 32, "passages": 192},
    }
    for name, about in sets.items():
        if not (folder := out / "runs" / name).exists():
            make_run(folder)
        (folder / "eval").mkdir(exist_ok=True)
        (folder / "eval" / "lambada.json").write_text(json.dumps(LAMBADA | about))
        (folder / "eval" / "wikitext.json").write_text(json.dumps(WIKITEXT | {"data_sha256": about["data_sha256"]}))
    assert run_command(app, ["runs", str(out), "--json", "--sort", "lambada"]) == 0
    shown = json.loads(capsys.readouterr().out)["runs"]
    assert {run["name"]: run["cloze_set"] for run in shown} == {
        "tiny-1": "LAMBADA", "tiny-2": "cloze 1a1a1a1a", "tiny-3": "cloze 2b2b2b2b",
        "tiny-4": "LAMBADA 3c3c3c3c", "tiny-5": "cloze 1a1a1a1a",
    }  # fmt: skip
    kept = [run["cloze_set"] for run in shown]
    assert sorted(kept, key=kept.index) == kept, "runs on one set stand together"
    rows = table_rows(read_runs([out])[0])
    heads = [head for head in rows[0] if head.startswith(("LAMBADA", "cloze"))]
    names = ["LAMBADA", "cloze 1a1a1a1a", "cloze 2b2b2b2b", "LAMBADA 3c3c3c3c"]
    assert heads == [head for name in names for head in (name, f"{name} ppl")]
    assert [[row[name] for name in names] for row in rows[:2]] == [["25.00%", "–", "–", "–"], ["–", "25.00%", "–", "–"]]
    assert sum(head.startswith("WikiText") for head in rows[0]) == 4


def test_json_has_every_setting_and_result(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["runs", str(out), "--json", "--sort", "lambada"]) == 0
    found = json.loads(capsys.readouterr().out)
    first = found["runs"][0]
    assert first["name"] == "tiny-1" and first["cloze_accuracy"] == 0.25 and first["settings"]["steps"] == 100
    assert first["data"] == "0123456789abcdef" and first["evaluation"]["wikitext"]["token_perplexity"] == 30.0
    assert first["record"]["starts"][0]["layout"] == "tp 1 x pp 1 x dp 2"
    assert found["differences"] == {"optimizer.lr": [0.0006, 0.01, 0.0006]} and found["broken"] == []


BROKEN = {
    "config.toml": "steps = -3",
    "metrics.jsonl": bytes(10),  # as a power failure leaves a file
    "run.json": "[]",
    "eval/lambada.json": '{"definitions": 3, "headline": "x"}',
    "eval/wikitext.json": bytes(10),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_named_and_others_are_shown(out: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content = BROKEN[name]
    path = out / "runs" / "tiny-1" / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run_command(app, ["runs", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("warning: ") and str(out / "runs" / "tiny-1") in said.err and said.err.count("\n") == 1
    assert name in said.err or name == "eval/lambada.json"
    assert "tiny-2" in said.out
    assert ("tiny-1" in said.out) == (name == "metrics.jsonl")  # its other rows are shown


def test_numbers_that_were_not_finite_and_a_truncated_row_are_left_out(out: Path) -> None:
    with (out / "runs" / "tiny-2" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "loss": null, "tokens": 10496, "seconds": 1.0, "valid_loss": null}\n{"step": 42, "lo')
    run = read_run(out / "runs" / "tiny-2")
    assert run.step == 41 and run.loss is not None and run.valid_loss is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is not a folder; give an output folder"),
        (["."], "no run below .; give an output folder"),
        (["out", "--sort", "colour"], "colour"),
        (["out", "--html", "out"], "out is a folder"),
        (["out", "--html", "notes.txt"], "notes.txt exists and is not a page of runs"),
    ],
)
def test_mistakes_are_one_error_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    if arguments[0] == "out":
        make_run(tmp_path / "out" / "runs" / "a", steps=20)
    assert run_command(app, ["runs", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_read_is_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path | str) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError, match=str(out)):
        read_runs([out])


@pytest.mark.slow
def test_the_command_does_not_import_torch(out: Path) -> None:
    code = "import sys; from gpt2train.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "runs", str(out), "--html", str(out / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"page: {out / 'page.html'}\n")


def cut_back(run: Path, step: int) -> None:
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
    assert (run / "run.json.old").read_text() == "mine"
    record = read_record(run)
    assert record is not None and len(record.starts) == 1
    # Fields of a later release are kept.
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
