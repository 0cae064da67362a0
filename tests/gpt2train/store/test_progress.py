"""Progress lines: done of total, rate, time left; and their position on a terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2train.store.counts import count_of
from gpt2train.store.progress import StageProgress, format_duration, progress_bar

ROOT = Path(__file__).parents[3]
DRAW = """
from types import SimpleNamespace
from gpt2train.store import progress
from gpt2train.store.progress import ProgressBar, StageProgress
progress.time = SimpleNamespace(monotonic=lambda: 30.0)
progress = StageProgress("page", 8, started=0.0)
bar = ProgressBar("download", progress)
progress.done, progress.rows = 2, 6000
bar.update()
bar.close()
"""
BLOCK = """
from gpt2train.store.progress import progress_bar
with progress_bar("lambada") as report:
    report(3, 4)
"""


def test_text_of_a_stage() -> None:
    progress = StageProgress("page", 10, started=100.0)
    assert progress.summary(100.0) == "0 of 10 batches"
    progress.done, progress.rows = 4, 3000
    assert progress.summary(120.0) == "4 of 10 batches, 3,000 pages, 150 pages/s, 0:30 left"
    progress.done, progress.rows = 10, 30
    assert progress.summary(3800.0) == "10 of 10 batches, 30 pages, 0.0 pages/s, took 1:01:40"
    assert StageProgress("document", 3, done=1, started=0.0).summary(9.0) == "1 of 3 batches, 0:18 left"


def test_text_of_a_stage_whose_batches_report_their_rows() -> None:
    progress = StageProgress("page", 2, all_rows=20_000, started=100.0)
    assert progress.summary(100.0) == "0 of 2 batches, 0 of 20,000 pages" and progress.share == 0
    progress.rows = 5000  # no batch has ended
    assert (
        progress.summary(200.0) == "0 of 2 batches, 5,000 of 20,000 pages, 50 pages/s, 5:00 left"
        and progress.share == 0.25
    )
    progress.done, progress.rows = 2, 20_000
    assert progress.summary(400.0) == "2 of 2 batches, 20,000 of 20,000 pages, 67 pages/s, took 5:00"


@pytest.mark.parametrize(("seconds", "said"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7384, "2:03:04")])
def test_durations_are_formatted_as_clock_time(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def drawn(code: str) -> str:
    """Run a program on a terminal and return what it shows, without control sequences."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], stderr=theirs, env=environment, check=True, timeout=60)
    os.close(theirs)
    shown = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not block:
            break
        shown += block
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_a_terminal_shows_rate_and_time_left() -> None:
    plain = drawn(DRAW)
    assert re.search(r"download .* 2/8 200 pages/s 0:00:\d\d 1:30 left", plain), plain


def test_the_bar_of_a_block_of_work() -> None:
    """Total unknown at first, then as reported."""
    plain = drawn(BLOCK)
    assert "0/?" in plain and re.search(r"lambada .* 3/4 .*\d:\d\d left", plain), plain


def test_nothing_is_drawn_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("lambada") as report:
        report(1, 2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "page", "1 page"),
        (0, "page", "0 pages"),
        (2000, "training document", "2,000 training documents"),
        (2, "entry", "2 entries"),
        (2, "day", "2 days"),
        (2, "batch", "2 batches"),
        (3, "process", "3 processes"),
        (2, "corpus", "2 corpora"),
        (1, "GPU", "1 GPU"),
    ],
)
def test_one_is_in_the_singular(number: int, noun: str, text: str) -> None:
    assert count_of(number, noun) == text


def test_progress_of_one_row() -> None:
    assert ", 1 page, " in StageProgress("page", 2, done=1, rows=1, started=0.0).summary(10.0)
