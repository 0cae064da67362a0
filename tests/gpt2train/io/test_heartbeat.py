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
    with Heartbeat(lambda: pytest.fail("too early"), 3600):
        pass


def test_the_age_counts_from_the_last_change() -> None:
    """An equal value grows old, another one is new."""
    change = LastChange()
    first = change.age({"beat": 1})
    time.sleep(0.02)
    assert first < 0.02 <= change.age({"beat": 1})
    assert change.age({"beat": 2}) < 0.02
