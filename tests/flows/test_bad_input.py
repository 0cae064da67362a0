"""Mistakes of the user: one line that names the thing and the remedy, exit code 2, nothing started."""

import subprocess
import sys
from pathlib import Path

from tests.flows.mini import Mini


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    import os

    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def check_refused(done: "subprocess.CompletedProcess[str]", *said: str) -> None:
    """Exit code 2 and exactly one line that says these things."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    for part in said:
        assert part in done.stderr


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    done = run("flows.pipeline", "--urls", str(tmp_path / "none.txt"), "--output", str(tmp_path / "out"))
    check_refused(done, "none.txt", "No such file", "check the path")


def test_an_unknown_flag_has_a_near_name(tmp_path: Path) -> None:
    check_refused(run("flows.pipeline", "--dedup.treshold", "0.7"), "--dedup.treshold", "--dedup.threshold")


def test_an_unknown_setting_in_a_file_has_a_near_name(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("[dedup]\ntreshold = 0.7\n")
    check_refused(run("flows.pipeline", "--config", str(config)), "mine.toml", "dedup.treshold", "'dedup.threshold'")


def test_a_value_out_of_bounds(tmp_path: Path) -> None:
    check_refused(run("flows.pipeline", "--dedup.threshold", "7"), "--dedup.threshold", "less than or equal to 1")


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("[dedup\n")
    check_refused(run("flows.dataprep", "--config", str(config)), "mine.toml", "line 1")


def test_an_unknown_preset(tmp_path: Path) -> None:
    check_refused(run("flows.pipeline", "--preset", "354m", "--output", str(tmp_path)), "'354m'", "'345m'")


def test_a_batch_that_does_not_divide(tmp_path: Path) -> None:
    done = run("flows.pipeline", "--launch.processes", "3", "--output", str(tmp_path / "out"))
    check_refused(done, "global_batch", "3 processes")


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_refused(run("flows.pipeline", "--output", str(tmp_path / "file" / "out")), "file/out", "--output")


def test_a_lambada_file_with_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "lambada.jsonl").write_text('{"text": "a b"}\n{"words": 1}\n')
    done = run("flows.pipeline", "--lambada", str(tmp_path / "lambada.jsonl"), "--output", str(tmp_path / "out"))
    check_refused(done, "lambada.jsonl line 2")


def test_training_without_tokens_names_what_is_missing(tmp_path: Path) -> None:
    done = run("flows.pretrain", "--output", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "tokens" in done.stderr and done.stderr.count("\n") == 1


def test_help_shows_defaults_and_bounds() -> None:
    done = run("flows.pipeline", "--help", COLUMNS="200")
    assert done.returncode == 0
    assert "--dedup.threshold" in done.stdout and "[default: 0.8]" in done.stdout


def test_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("\n# nothing yet\n")
    done = run("flows.pipeline", "--urls", str(tmp_path / "urls.txt"), "--output", str(tmp_path / "out"))
    check_refused(done, "urls.txt", "holds no URL", "one a line")


def test_a_list_whose_every_url_is_rejected(mini: Mini, tmp_path: Path) -> None:
    """Seen by a step, inside a Prefect run; still one line."""
    (tmp_path / "urls.txt").write_text("http://www.youtube.example/x\nnot a url\n")
    command = [sys.executable, "-m", "flows.dataprep", "--urls", str(tmp_path / "urls.txt")]
    command += ["--output", str(tmp_path / "out")]
    done = subprocess.run(command, env=mini.environ(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    error = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(error) == 1, done.stderr
    assert "blacklisted_domain 1" in error[0] and "malformed 1" in error[0]
    assert "Traceback" not in done.stderr


def test_two_runs_on_one_output(mini: Mini, tmp_path: Path) -> None:
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"):
        done = mini.run("dataprep", "--output", str(tmp_path))
    assert done.returncode == 2
    assert "another run is at work" in done.stderr
