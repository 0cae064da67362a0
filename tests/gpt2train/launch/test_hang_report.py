"""Report of a hang by real ranks: who waits in which collective, who does not, and the stacks of all."""

import re
import time
from pathlib import Path

import pytest

from gpt2train.launch.hang_report import RankState, summary
from tests.gpt2train.jobs import finish, make, start, write

PROGRAM = Path(__file__).parent / "hanging_rank.py"
TIMEOUT = 25.0  # of collectives, seconds; starting four ranks takes 10 s on a busy machine


def test_ranks_in_the_same_collective_are_one_part() -> None:
    states = [RankState(f"waits for {n} s in all_reduce at a.py:1 in f", "all_reduce", "") for n in (30, 30, 29)]
    states.append(RankState("is at b.py:2 in g", "", ""))
    assert summary(states) == "ranks 0, 1, 2 wait for 30 s in all_reduce at a.py:1 in f; rank 3 is at b.py:2 in g"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "last", "stack"),
    [
        ("sleep", r"rank 3 is at hanging_rank\.py:\d+ in hang", "time.sleep(600)"),
        ("stop", r"rank 3 does not answer: its process \d+ is stopped", "(none)"),
    ],
)
def test_a_hang_names_rank_and_collective(kind: str, last: str, stack: str, tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run", steps=1000, parallel={"zero": 1})
    job = start(str(PROGRAM), write(config), kind, str(TIMEOUT), processes=4)
    begun = time.monotonic()
    code, out, err = finish(job)
    assert code == 1 and time.monotonic() - begun < 200, out
    assert len(err.splitlines()) == 1, err
    assert err.startswith("error: rank 3 gave no sign of life while rank "), err
    collective = r"wait for 2\d s in all_reduce of float64 \[3\] \(group default of ranks 0, 1, 2, 3; number \d+\)"
    assert re.search(rf"ranks 0, 1, 2 {collective} at engine\.py:\d+ in measure", err), err
    assert re.search(last, err), err
    reports = list((tmp_path / "run" / "logs").glob("hang-*.txt"))
    assert len(reports) == 1 and str(reports[0]) in err
    text = reports[0].read_text()
    assert all(f"stack of rank {rank}:" in text for rank in range(4)), text
    assert stack in text.partition("stack of rank 3:")[2], text
