"""Progress lines: done of total, rate, time left; and their position on a terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.ui.artifacts import training_summary
from gpt2train.io.progress import StageProgress, format_duration

ROOT = Path(__file__).parents[3]
DRAW = """
from gpt2train.io.progress import ProgressBar, StageProgress
import time
progress = StageProgress("pages", 8, started=time.monotonic() - 30)
bar = ProgressBar("download", progress)
progress.done, progress.rows = 2, 6000
bar.update()
time.sleep(0.3)
bar.close()
"""


def test_text_of_a_stage() -> None:
    progress = StageProgress("pages", 10, started=100.0)
    assert progress.summary(100.0) == "0 of 10 batches"
    progress.done, progress.rows = 4, 3000
    assert progress.summary(120.0) == "4 of 10 batches, 3,000 pages, 150 pages/s, 0:30 left"
    progress.done, progress.rows = 10, 30
    assert progress.summary(3800.0) == "10 of 10 batches, 30 pages, 0.0 pages/s, took 1:01:40"
    assert StageProgress("documents", 3, done=1, started=0.0).summary(9.0) == "1 of 3 batches, 0:18 left"


def test_text_of_a_stage_whose_batches_report_their_rows() -> None:
    progress = StageProgress("pages", 2, all_rows=20_000, started=100.0)
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


def test_text_of_a_training() -> None:
    records = [{"step": step, "seconds": 2.0, "tokens_per_second": 12345.6} for step in range(1, 41)]
    assert training_summary(records, 100) == "step 40 of 100, 12,346 tokens/s, 2:00 left"
    assert training_summary([*records, {"step": 100, "seconds": None}], 100) == "step 100 of 100"


def test_a_terminal_shows_rate_and_time_left() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", DRAW], stderr=theirs, env=environment, check=True, timeout=60)
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
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"download .* 2/8 (1[5-9]\d|200) pages/s 0:00:\d\d 1:[3-5]\d left", plain), plain
