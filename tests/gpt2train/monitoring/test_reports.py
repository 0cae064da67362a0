"""Reports of a run: memory of each rank, the slowest rank, time left, warnings."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import RunConfig
from gpt2train.monitoring.gpu_meter import GpuUse
from gpt2train.monitoring.memory_report import HEAD, MAX_ROWS, RankMemory, peak_resident, table
from gpt2train.monitoring.rank_report import gpu_columns, slowest, slowest_line
from gpt2train.monitoring.run_logger import StepTimer, overfitting_warning, step_line, warn_before_start
from gpt2train.monitoring.time_left import TimeLeft
from gpt2train.settings import build
from gpt2train.training.phases import PhaseTimer
from tests.gpt2train.monitoring.test_run_logger import ROW

GIB = 2**30


def row(rank: int, pp: int = 0, dp: int = 0, tp: int = 0, allocated: int = 0) -> RankMemory:
    return RankMemory(rank, f"node{rank}", pp, dp, tp, 89_714_688, 2 * GIB, allocated, 2 * allocated)


def test_the_table_has_one_line_per_rank() -> None:
    title, head, first, second = table([row(0), row(1, tp=1, allocated=3 * GIB // 2)], "at the end")
    assert (title, head) == ("memory at the end", HEAD)
    assert first.split() == ["0", "node0", "0", "0", "0", "89,714,688", "2.00", "GiB", "-", "-"]
    assert second.split()[4:] == ["1", "89,714,688", "2.00", "GiB", "1.50", "GiB", "3.00", "GiB"]
    assert len(head) == len(first) == len(second)


def test_with_many_ranks_only_the_largest_of_each_group_is_listed() -> None:
    rows = [row(rank, pp=rank % 2, dp=rank // 2, allocated=rank * GIB) for rank in range(MAX_ROWS + 2)]
    title, _, *lines = table(rows, "at the end")
    assert f"of {MAX_ROWS + 2} ranks" in title
    assert [int(line.split()[0]) for line in lines] == [MAX_ROWS, MAX_ROWS + 1]


def test_the_peak_stays_after_memory_is_freed() -> None:
    before = peak_resident()
    block = np.ones(64 << 20, np.uint8)
    del block
    assert before > 10 << 20
    assert peak_resident() >= before
    assert peak_resident() - before < 80 << 20


def test_the_rank_that_works_longest_is_the_slowest() -> None:
    found = slowest([(1.0, 1.0), (1.0, 1.0), (2.0, 0.0), (1.5, 0.5)])
    waiting = pytest.approx((0.5 + 0.5 + 0.25) / 3, abs=1e-4)
    assert found == {"slowest_rank": 2, "slowest_rank_excess": 0.6, "waiting": waiting}
    assert slowest([(1.0, 0.0)]) == {}
    assert slowest([(math.nan, math.nan)] * 2) == {}  # on a GPU


def test_a_line_names_a_rank_only_if_it_is_slower() -> None:
    row: dict[str, Any] = {"slowest_rank": 1, "slowest_rank_excess": 0.31, "waiting": 0.12}
    expected = "slowest rank 1 (b): 31% more work than the median, the others wait 12%"
    assert slowest_line(row, ["a", "b"]) == expected
    assert slowest_line(row | {"slowest_rank_excess": 0.05}, ["a", "b"]) is None
    assert slowest_line({}, ["a", "b"]) is None


def test_gpus_are_added_up() -> None:
    columns = gpu_columns([GpuUse(10.0, 200.0, 0.5, 8.0), GpuUse(*[math.nan] * 4), GpuUse(30.0, 300.0, 0.9, 6.0)])
    assert columns == {"gpu_joules": 40.0, "gpu_watts": 500.0, "gpu_utilization": 0.7, "gpu_memory_gib": 8.0}
    assert gpu_columns([GpuUse(*[math.nan] * 4)]) == {}
    assert " | GPU 70% 500 W" in step_line(ROW | columns, 9)


def rows(count: int, **changes: Any) -> list[dict[str, Any]]:
    """Rows of steps of one second each."""
    return [{"step": step, "seconds": 1.0} | changes for step in range(1, count + 1)]


def test_before_the_first_step_nothing_is_known() -> None:
    assert TimeLeft().seconds(100) is None
    assert TimeLeft([{"step": 1, "seconds": None}, {"step": 2, "seconds": math.nan}]).seconds(100) is None


def test_single_slow_steps_do_not_count() -> None:
    found = rows(40)
    for step in (0, 7, 39):
        found[step]["seconds"] = 600.0
    assert TimeLeft(found).seconds(100) == 60
    assert TimeLeft(found).seconds(40) == 0


@pytest.mark.parametrize("done", [250, 251, 499, 500])
def test_pauses_count_by_their_share(done: int) -> None:
    found = rows(done)
    for row in found:
        if row["step"] % 250 == 0:
            row["validation_seconds"] = 25.0
        if row["step"] % 100 == 0:
            row["save_stall_seconds"] = 10.0
    assert TimeLeft(found).seconds(1250) == pytest.approx((1250 - done) * (1 + 0.1 + 0.1))


def test_a_speed_that_changed_is_followed() -> None:
    found = [*rows(1000), *({"step": 1000 + step, "seconds": 3.0} for step in range(1, 51))]
    assert TimeLeft(found).seconds(1060) == 30


def test_a_pause_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    timer = StepTimer(PhaseTimer())
    now[0] += 3
    with timer.paused():
        now[0] += 50
    now[0] += 1
    assert timer.lap() == 4
    now[0] += 2
    assert timer.lap() == 2
    now[0] += 7
    timer.restart()
    now[0] += 1
    assert timer.lap() == 1


GIVEN = {"vocab": 300, "output": "o", "data": {"train": "t"}, "steps": 100, "schedule": {"warmup": 9}}
CONFIG = build(RunConfig, GIVEN)


def validated_rows(train: list[float], valid: list[float | None]) -> list[dict[str, Any]]:
    """One row a step; a validation after every second one."""
    found: list[dict[str, Any]] = []
    for i, (loss, held_out) in enumerate(zip(train, valid, strict=True)):
        found += [{"step": 2 * i + 1, "loss": loss}, {"step": 2 * i + 2, "loss": loss, "valid_loss": held_out}]
    return found


def test_doubtful_settings_are_warned_of_before_the_first_step() -> None:
    assert warn_before_start(CONFIG, 9, [("books", 3.9)]) == []
    assert warn_before_start(CONFIG, 50, []) == []
    (warmup,) = warn_before_start(CONFIG, 51, [])
    assert warmup == "the warm-up takes 51 of 100 steps; schedule.warmup is usually below a tenth"
    (epochs,) = warn_before_start(CONFIG, 9, [("books", 4.1), ("news", 1.0)])
    assert epochs.startswith("4.1 epochs of books")


def test_overfitting_is_warned_of_after_two_rises() -> None:
    falling = [5.0, 4.0, 3.0, 2.5]
    warning = overfitting_warning(validated_rows(falling, [5.1, 4.2, 4.3, 4.4]))
    assert warning is not None
    assert "risen 2 times in a row (4.2000 to 4.4000)" in warning and "step 4 (4.2000)" in warning
    assert overfitting_warning(validated_rows(falling[:3], [5.1, 4.2, 4.3])) is None  # one rise is noise
    assert overfitting_warning(validated_rows(falling, [5.1, 4.2, 4.1, 4.4])) is None
    assert (
        overfitting_warning(validated_rows([5.0, 4.0, 4.1, 4.2], [5.1, 4.2, 4.3, 4.4])) is None
    )  # both rise: something else
    assert overfitting_warning([]) is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12))
def test_a_falling_validation_loss_gives_no_warning(losses: list[float]) -> None:
    ordered: list[float | None] = [*sorted(losses, reverse=True)]
    assert overfitting_warning(validated_rows(losses, ordered)) is None
