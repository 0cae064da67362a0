"""Comparison of the modern recipe with GPT-2: equal schedules, and learning rates that are chosen in the same way."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.modern import HORIZONS, SEEDS, SIZES, Arm, Bench, crossing

SIZE = SIZES["nano"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, SIZE, "nano")


def finish(bench: Bench, arms: Iterator[Arm], loss: Callable[[Arm], float]) -> list[Arm]:
    """Finish trainings without training: their losses are those of a function."""
    done = []
    for arm in arms:
        if arm.key not in bench.finished():
            done.append(arm)
            row = {"key": arm.key, "loss": loss(arm), "cpu_seconds": 1}
            with bench.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return done


@pytest.mark.parametrize("off", [-5.3, -0.4, 0.4, 3.7])
def test_a_search_ends_when_the_best_rate_lies_between_worse_ones(bench: Bench, off: float) -> None:
    best = SIZE.rate * 2**off
    search = bench.gpt2_search()
    done = finish(bench, search.arms(), lambda arm: abs(math.log2(arm.rate / best)) + arm.seed)
    assert search.is_bracketed and abs(math.log2(search.best / best)) <= 0.5
    rates = {arm.rate for arm in done}
    assert {search.best / 2, 2 * search.best} <= rates
    assert {(arm.rate, arm.seed) for arm in done} == {(rate, seed) for rate in rates for seed in SEEDS}
    assert len(done) == len(rates) * len(SEEDS) and len(rates) <= 4 + abs(off)


@pytest.mark.parametrize("needed", [0.07, 0.6])
def test_the_share_of_the_tokens_is_found_between_two_tuned_horizons(
    bench: Bench, needed: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe whose loss falls with the logarithm of its tokens, with a best rate of twice its rule's."""

    def loss(arm: Arm) -> float:
        if arm.name != "modern":
            return 4 + abs(math.log2(arm.rate / SIZE.rate))
        rule = bench.rules(arm.share)
        return 4 - math.log(arm.share / needed) + abs(math.log2(arm.rate / (2 * rule["optimizer"]["lr"])))

    done = finish(bench, bench.wanted(ablations=False), loss)
    shares = sorted({arm.share for arm in done if arm.name == "modern"})
    assert any(low < needed < high for low, high in itertools.pairwise(shares))
    assert all(len([arm for arm in done if arm.share == share]) >= 3 * len(SEEDS) for share in shares)
    assert set(shares) <= set(HORIZONS)
    bench.show()
    assert f"share of GPT-2's: {needed:.3f} +- 0.000" in capsys.readouterr().out


def test_both_sides_have_the_same_warm_down(bench: Bench) -> None:
    ours, theirs = (bench.config(arm) for arm in (bench.recipe(1, 1), bench.gpt2(1e-3, 1)))
    for name in ("kind", "decay_fraction", "decay_shape", "min_lr", "decay_steps"):
        assert getattr(ours.schedule, name) == getattr(theirs.schedule, name)
    assert theirs.schedule.min_lr == 0
    assert (ours.steps, ours.batch, ours.seed) == (theirs.steps, theirs.batch, theirs.seed)


def test_what_is_not_finished_is_not_claimed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.show()
    finish(bench, iter([bench.gpt2(SIZE.rate, seed) for seed in SEEDS]), lambda _: 4.0)
    bench.show()
    assert "tokens to" not in capsys.readouterr().out
    assert replace(bench, name="other").finished() == {}


def test_a_crossing_is_on_the_line_through_the_nearest_points() -> None:
    points = [(0.1, 5.0), (0.2, 4.0), (0.4, 3.5)]
    assert crossing(points, 4.0) == pytest.approx(0.2)
    assert crossing(points, 4.5) == pytest.approx(0.1 * 2**0.5)
    assert crossing(points, 3.75) == pytest.approx(0.2 * 2**0.5)
