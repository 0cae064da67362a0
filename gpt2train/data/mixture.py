"""Data mixture: several corpora in given shares, by global sample index.

Sample `g` comes from corpus `table[g mod D]`, where the table is one period of a maximally even sequence: in every
prefix of n samples, the number of draws of a corpus with share w differs from w x n by less than one (Steiner and
Yeomans 1993, "Level schedules for mixed-model, just-in-time processes"). The index within that corpus follows by
counting. So a sample depends on the global index alone, and every corpus has its own epochs.
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

MAX_PERIOD = 1 << 16  # entries of the table; shares that need more are rounded to 1/65,536


def shares(weights: Sequence[float]) -> list[int]:
    """Number of draws of each corpus in one period, in the ratio of the weights.

    Exact for the weights as written (0.7, 0.2, 0.1 gives 7, 2, 1) if the period is at most `MAX_PERIOD`; otherwise
    rounded to a period of `MAX_PERIOD`, with each corpus at least once.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    unit = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * unit) for weight in exact]
    whole = [count // math.gcd(*whole) for count in whole]
    if sum(whole) <= MAX_PERIOD:
        return whole
    rounded = [max(1, round(weight / sum(exact) * MAX_PERIOD)) for weight in exact]
    rounded[rounded.index(max(rounded))] += MAX_PERIOD - sum(rounded)
    return rounded


def interleave(counts: Sequence[int]) -> np.ndarray:
    """Arrange one period with `counts[i]` draws of corpus i, less than one away from its share in any prefix.

    The j-th draw of corpus i (from 0) must not come before slot floor(j D / count) nor after ceil((j + 1) D / count)
    - 1. Taking the available draw with the earliest last slot satisfies all of these: the paper above shows that a
    valid order exists, and for unit jobs the earliest-due-date rule finds one if it exists.

    Returns:
        uint16 [sum(counts)].
    """
    length = sum(counts)
    order = np.empty(length, dtype=np.uint16)
    coming: list[list[int]] = [[] for _ in range(length)]  # corpora whose next draw may come from this slot on
    for corpus in range(len(counts)):
        coming[0].append(corpus)
    drawn, ready = [0] * len(counts), list[tuple[int, int]]()
    for slot in range(length):
        for corpus in coming[slot]:
            heapq.heappush(ready, (-(-(drawn[corpus] + 1) * length // counts[corpus]), corpus))
        _, corpus = heapq.heappop(ready)
        order[slot] = corpus
        drawn[corpus] += 1
        if drawn[corpus] < counts[corpus]:
            coming[max(slot + 1, drawn[corpus] * length // counts[corpus])].append(corpus)
    return order


class Mixture:
    """Mapping from global sample indices to a corpus and an index in it.

    Args:
        weights: weights of the corpora, above 0; only their ratios matter.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        counts = shares(weights)
        self._order = interleave(counts)
        self._per_period = np.array(counts, dtype=np.int64)
        # Number of draws of the same corpus before each slot of the period.
        by_corpus = np.argsort(self._order, kind="stable")
        self._before = np.empty(len(self._order), dtype=np.int64)
        self._before[by_corpus] = np.arange(len(self._order)) - np.repeat(
            np.cumsum(self._per_period) - self._per_period, self._per_period
        )

    @property
    def shares(self) -> list[float]:
        """Actual share of each corpus in the samples."""
        drawn: list[float] = (self._per_period / len(self._order)).tolist()
        return drawn

    def per_epoch(self, samples: Sequence[int]) -> int:
        """Samples until the first corpus repeats, of corpora of so many samples."""
        drawn = zip(samples, self._per_period.tolist(), strict=True)
        return min(count * len(self._order) // draws for count, draws in drawn)

    def of(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Corpus number, and index in that corpus, of each global sample index: two arrays [len(indices)]."""
        periods, slots = np.divmod(np.asarray(indices, dtype=np.int64), len(self._order))
        corpora = self._order[slots]
        return corpora, periods * self._per_period[corpora] + self._before[slots]

    def drawn(self, corpus: int, samples: int) -> int:
        """Number of samples of a corpus among the first `samples` of the mixture."""
        periods, rest = divmod(samples, len(self._order))
        return periods * int(self._per_period[corpus]) + int((self._order[:rest] == corpus).sum())

    def global_indices(self, corpus: int, indices: np.ndarray) -> np.ndarray:
        """Global sample indices of samples of a corpus, the inverse of `of`."""
        periods, draws = np.divmod(np.asarray(indices, dtype=np.int64), self._per_period[corpus])
        return periods * len(self._order) + np.flatnonzero(self._order == corpus)[draws]
