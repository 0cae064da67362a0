"""Time of a step without saves and validation, and time left: steps at their median, pauses by their share."""

import math
from typing import Any

import pytest

from gpt2train.monitoring.run_logger import StepTimer
from gpt2train.monitoring.time_left import TimeLeft
from gpt2train.training.phases import PhaseTimer


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
