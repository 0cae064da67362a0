"""Passes of a pipeline's schedule with counted repetitions, against walks through all passes."""

import random
import time
from collections import Counter

import pytest

from gpt2train.simulate.recorder import CATEGORIES
from gpt2train.simulate.schedule import Kind, PassMemory, Profile, kinds, passes, peak, repeated_passes


def walked(schedule: str, pp: int, stages: int, number: int, rank: int) -> list[Kind]:
    return list(kinds(passes(schedule, pp, stages, number, rank), number))


@pytest.mark.parametrize(
    ("schedule", "pp", "stages"),
    [
        *[("1f1b", pp, 1) for pp in (2, 3, 5, 8)],
        *[("gpipe", pp, 1) for pp in (2, 4)],
        *[("interleaved", pp, stages) for pp in (2, 3, 4) for stages in (2, 3, 5)],
    ],
)
def test_repetitions_are_the_passes_of_the_schedule(schedule: str, pp: int, stages: int) -> None:
    step = pp if schedule == "interleaved" else 1
    compressed = 0
    for number in range(pp, pp * 14 + 1, step):
        for rank in range(pp):
            order = repeated_passes(schedule, pp, stages, number, rank)
            compressed += len(order) > 1
            assert [kind for period, times in order for kind in period * times] == walked(
                schedule, pp, stages, number, rank
            ), (number, rank)
    assert compressed > 4 * pp


def drawn(draw: random.Random, found: set[Kind], range_: int) -> Profile:
    def sizes(low: int) -> dict[str, int]:
        return {name: draw.randint(low, range_) for name in CATEGORIES}

    changes = {kind: PassMemory(sizes(0), sizes(-range_)) for kind in sorted(found)}
    return Profile(3, sizes(0), draw.randint(0, 9), changes, sizes(0))


@pytest.mark.parametrize("seed", range(60))
def test_the_peak_is_that_of_a_walk_through_all_passes(seed: int) -> None:
    draw = random.Random(seed)
    schedule = ("1f1b", "gpipe", "interleaved")[seed % 3]
    pp = draw.randint(2, 5)
    stages = draw.randint(2, 3) if schedule == "interleaved" else 1
    number = pp * draw.randint(7, 12)
    rank = draw.randrange(pp)
    order = walked(schedule, pp, stages, number, rank)
    profile = drawn(draw, set(order), 1 if seed % 2 else 1000)
    assert peak(profile, repeated_passes(schedule, pp, stages, number, rank), number) == peak(
        profile, [(order, 1)], number
    )


def test_the_time_does_not_depend_on_the_number_of_micro_batches() -> None:
    for schedule, pp, stages in (("1f1b", 8, 1), ("gpipe", 8, 1), ("interleaved", 8, 4)):
        number = 8 * 10**12
        started = time.process_time()
        order = repeated_passes(schedule, pp, stages, number, 3)
        assert time.process_time() - started < 5
        made: Counter[bool] = Counter()
        for period, times in order:
            for kind in period:
                made[kind[0][0]] += times
        assert made == {True: number * stages, False: number * stages}
