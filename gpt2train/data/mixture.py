"""Several corpora in given shares, by global sample index.

Sample `g` comes from corpus `table[g mod D]`, where the table is one period of the fairest sequence there is: at every
prefix of n samples, a corpus of share w has been drawn within one of w x n times (Steiner and Yeomans 1993, "Level
schedules for mixed-model, just-in-time processes"). Which sample of that corpus it is follows from counting. So the
index alone still decides, and every corpus has its own epochs.
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

LONGEST = 1 << 16  # entries of the table; shares that need more are rounded to 1/65,536


def shares(weights: Sequence[float]) -> list[int]:
    """Whole numbers in the ratio of the weights: how often each corpus is drawn in one period.

    Exact as the weights are written (0.7, 0.2, 0.1 is 7, 2, 1) where the period stays within `LONGEST`; else rounded
    to fill it, each corpus at least once.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    unit = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * unit) for weight in exact]
    whole = [count // math.gcd(*whole) for count in whole]
    if sum(whole) <= LONGEST:
        return whole
    rounded = [max(1, round(weight / sum(exact) * LONGEST)) for weight in exact]
    rounded[rounded.index(max(rounded))] += LONGEST - sum(rounded)
    return rounded


def interleave(counts: Sequence[int]) -> np.ndarray:
    """One period in which corpus i stands `counts[i]` times, never one or more away from its share of any prefix.

    The j-th draw of corpus i (from 0) must not come before place floor(j D / count) nor after ceil((j + 1) D / count)
    - 1; taking the draw whose last place is nearest meets all of these (the paper above shows that some order does,
    and for unit jobs the earliest due date finds one where there is one).

    Returns:
        uint16 [sum(counts)].
    """
    length = sum(counts)
    order = np.empty(length, dtype=np.uint16)
    coming: list[list[int]] = [[] for _ in range(length)]  # corpora whose next draw may come from this place on
    for corpus in range(len(counts)):
        coming[0].append(corpus)
    drawn, ready = [0] * len(counts), list[tuple[int, int]]()
    for place in range(length):
        for corpus in coming[place]:
            heapq.heappush(ready, (-(-(drawn[corpus] + 1) * length // counts[corpus]), corpus))
        _, corpus = heapq.heappop(ready)
        order[place] = corpus
        drawn[corpus] += 1
        if drawn[corpus] < counts[corpus]:
            coming[max(place + 1, drawn[corpus] * length // counts[corpus])].append(corpus)
    return order


class Mixture:
    """Which corpus a global sample comes from, and which of its samples it is.

    Args:
        weights: of the corpora, above 0; only their ratios count.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        counts = shares(weights)
        self._order = interleave(counts)
        self._per_period = np.array(counts, dtype=np.int64)
        # How many draws of the same corpus stand before each place of the period.
        by_corpus = np.argsort(self._order, kind="stable")
        self._before = np.empty(len(self._order), dtype=np.int64)
        self._before[by_corpus] = np.arange(len(self._order)) - np.repeat(
            np.cumsum(self._per_period) - self._per_period, self._per_period
        )

    @property
    def shares(self) -> list[float]:
        """The share of each corpus, as it is drawn."""
        drawn: list[float] = (self._per_period / len(self._order)).tolist()
        return drawn

    def of(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The corpus of each global sample index, and the index in that corpus: two arrays [len(indices)]."""
        periods, places = np.divmod(np.asarray(indices, dtype=np.int64), len(self._order))
        corpora = self._order[places]
        return corpora, periods * self._per_period[corpora] + self._before[places]
