"""The time of a step, without saves and validation."""

import pytest

from gpt2train.monitoring.run_logger import StepTimer
from gpt2train.training.phases import PhaseTimer


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
