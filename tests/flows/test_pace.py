"""What a progress line says: done of total, rate, time left; and that a person at a terminal sees it."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.show.artifacts import training_words
from flows.show.pace import Pace, clock

ROOT = Path(__file__).parents[2]
DRAW = """
from flows.show.console import StepProgress
from flows.show.pace import Pace
import time
pace = Pace("pages", 8, started=time.monotonic() - 30)
bar = StepProgress("download", pace)
pace.done, pace.rows = 2, 6000
bar.update()
time.sleep(0.3)
bar.close()
"""


def test_words_of_a_stage() -> None:
    pace = Pace("pages", 10, started=100.0)
    assert pace.words(100.0) == "0 of 10 batches"
    pace.done, pace.rows = 4, 3000
    assert pace.words(120.0) == "4 of 10 batches, 3,000 pages, 150 pages/s, 0:30 left"
    pace.done, pace.rows = 10, 30
    assert pace.words(3800.0) == "10 of 10 batches, 30 pages, 0.0 pages/s, took 1:01:40"
    assert Pace("documents", 3, done=1, started=0.0).words(9.0) == "1 of 3 batches, 0:18 left"


def test_words_of_a_stage_whose_batches_tell_their_rows() -> None:
    pace = Pace("pages", 2, all_rows=20_000, started=100.0)
    assert pace.words(100.0) == "0 of 2 batches, 0 of 20,000 pages" and pace.share == 0
    pace.rows = 5000  # no batch has ended
    assert pace.words(200.0) == "0 of 2 batches, 5,000 of 20,000 pages, 50 pages/s, 5:00 left" and pace.share == 0.25
    pace.done, pace.rows = 2, 20_000
    assert pace.words(400.0) == "2 of 2 batches, 20,000 of 20,000 pages, 67 pages/s, took 5:00"


@pytest.mark.parametrize(("seconds", "said"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7384, "2:03:04")])
def test_clock(seconds: float, said: str) -> None:
    assert clock(seconds) == said


def test_words_of_a_training() -> None:
    records = [{"step": step, "seconds": 2.0, "tokens_per_second": 12345.6} for step in range(1, 41)]
    assert training_words(records, 100) == "step 40 of 100, 12,346 tokens/s, 2:00 left"
    assert training_words([*records, {"step": 100, "seconds": None}], 100) == "step 100 of 100"


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
