"""Mixtures of corpora: shares at every prefix, order within each corpus, dependence on the index alone."""

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.mixture import MAX_PERIOD, Mixture, interleave, shares

COUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=8)
WEIGHTS = st.lists(st.integers(1, 999).map(lambda n: n / 100), min_size=1, max_size=5)


@given(COUNTS)
def test_every_prefix_is_within_one_sample_of_the_shares(counts: list[int]) -> None:
    order, whole = interleave(counts), sum(counts)
    drawn = np.cumsum(order[:, None] == np.arange(len(counts)), axis=0)
    wanted = np.arange(1, whole + 1)[:, None] * np.array(counts)  # times `whole`, to stay in integers
    assert drawn[-1].tolist() == counts
    assert np.abs(drawn * whole - wanted).max() < whole


def test_equal_shares_alternate_and_a_single_corpus_is_unchanged() -> None:
    assert interleave([1, 1]).tolist() == [0, 1]
    assert interleave([7, 2, 1]).tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0, 2]
    corpora, mine = Mixture([0.37]).of(range(5))
    assert corpora.tolist() == [0] * 5 and mine.tolist() == [0, 1, 2, 3, 4]


def test_shares_are_exact_as_written() -> None:
    assert shares([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert shares([3, 1]) == shares([0.75, 0.25]) == [3, 1]
    assert shares([5.0]) == [1]


@given(st.lists(st.floats(1e-7, 1e7), min_size=2, max_size=9))
def test_any_weights_give_a_period_of_bounded_length(weights: list[float]) -> None:
    counts, whole = shares(weights), sum(map(Fraction, weights))
    assert sum(counts) <= MAX_PERIOD and min(counts) >= 1
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / sum(counts) - float(Fraction(weight) / whole)) < len(weights) / MAX_PERIOD


@settings(max_examples=50)
@given(WEIGHTS, st.integers(1, 3000))
def test_each_corpus_is_read_in_its_own_order(weights: list[float], length: int) -> None:
    mixture = Mixture(weights)
    corpora, mine = mixture.of(range(length))
    seen: Counter[int] = Counter()
    for corpus, index in zip(corpora.tolist(), mine.tolist(), strict=True):  # counted one by one
        assert index == seen[corpus]
        seen[corpus] += 1
    # An index means the same sample, whatever indices are requested before or with it.
    some = np.random.default_rng(length).integers(0, length, 20)
    assert (mixture.of(some)[0] == corpora[some]).all() and (mixture.of(some)[1] == mine[some]).all()
    for number, share in enumerate(mixture.shares):
        assert abs(seen[number] - share * length) < 1 + 1e-6


@given(st.lists(st.tuples(st.integers(1, 58), st.integers(1, 400)), min_size=1, max_size=4))
def test_an_epoch_ends_before_the_first_corpus_repeats(corpora: list[tuple[int, int]]) -> None:
    draws, samples = [draws for draws, _ in corpora], [count for _, count in corpora]
    mixture = Mixture(draws)
    epoch = mixture.per_epoch(samples)
    assert epoch == int(min(Fraction(count * sum(draws), drawn) for drawn, count in corpora))
    for number, count in enumerate(samples):
        assert mixture.drawn(number, epoch) <= count


def test_positions_are_exact_at_large_indices() -> None:
    n = 10**12
    corpora, mine = Mixture([2, 1]).of([3 * n, 3 * n + 1, 3 * n + 2])
    assert sorted(zip(corpora.tolist(), mine.tolist(), strict=True)) == [(0, 2 * n), (0, 2 * n + 1), (1, n)]
    assert Mixture([9, 2]).per_epoch([99, 99]) == 121
