"""Rank logs in the log of the flow: ranks, levels, each line once, bounded number."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt2train.errors import RunError, TransientError
from gpt2train.launch.rank_logs import read_line
from tasks.train.launch import rank_logs
from tasks.train.launch.job import LOST, Job, LogLineSink
from tasks.train.launch.launchers import LaunchSettings, run_job
from tasks.train.launch.rank_logs import RankLogs, level_of, tail_rank_logs
from tasks.train.launch.registry import Launcher

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
