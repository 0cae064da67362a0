"""Heartbeats come at their interval and end with their block; a value that changes is young."""

import threading
import time

import pytest

from gpt2train.io.heartbeat import Heartbeat, LastChange


def test_it_beats_until_the_block_ends() -> None:
    """Several calls inside, none after."""
    beats, three = [], threading.Event()

    def beat() -> bool:
        beats.append(time.monotonic())
        if len(beats) == 3:
            three.set()
        return True

    with Heartbeat(beat, 0.005):
        assert three.wait(30)
    count = len(beats)
    time.sleep(0.05)
    assert len(beats) == count


def test_it_ends_by_itself_when_the_function_returns_false() -> None:
    """No further call."""
    beats = []

    def beat() -> bool:
        beats.append(1)
        return False

    heartbeat = Heartbeat(beat, 0.001)
    heartbeat._thread.join(30)
    heartbeat.stop()
    assert beats == [1]


def test_a_block_shorter_than_the_interval_waits_for_no_beat() -> None:
    """The end of the block wakes the thread."""
    beats: list[int] = []
    with Heartbeat(lambda: beats.append(1) is None, 3600) as heartbeat:
        assert heartbeat._thread.is_alive()
    assert not heartbeat._thread.is_alive() and beats == []


def test_the_age_counts_from_the_last_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """An equal value grows old, another one is new."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    change = LastChange()
    assert change.age({"beat": 1}) == 0
    now[0] += 5
    assert change.age({"beat": 1}) == 5
    assert change.age({"beat": 2}) == 0
