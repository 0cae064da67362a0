"""Pairs of a bucket, and the documents that stay of a cluster."""

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tasks.dedup.clusters import Edges, choose_survivors, components_of
from tasks.dedup.lsh import pair_up_all, pair_with_pivots


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(1, 12))
@hypothesis_settings(deadline=None)
def test_buckets_give_each_pair_with_a_pivot_once(sizes: list[int], pivots: int) -> None:
    starts = np.cumsum([0, *sizes])
    small, hot = pair_up_all(np.arange(starts[-1]), starts, pivots)
    pairs = [tuple(pair) for part in [small, *(pair_with_pivots(b, pivots) for b in hot)] for pair in part.tolist()]
    expected = {
        (begin + a, begin + b)
        for begin, size in zip(starts.tolist(), sizes, strict=False)
        for b in range(size)
        for a in range(b if size <= pivots + 1 else min(b, pivots))
    }
    assert len(pairs) == len(set(pairs)) and set(pairs) == expected


def test_a_huge_bucket_takes_linear_time() -> None:
    for size in (100_000, 3_000_000, 9_000_000):
        assert size - 1 <= len(pair_with_pivots(np.arange(size), 64)) <= max(1 << 20, size)


GRAPHS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda e: e[0] < e[1]), max_size=20, unique=True
)


@given(GRAPHS, st.integers(0, 3))
@hypothesis_settings(deadline=None)
def test_survivors_follow_the_policy(graph: list[tuple[int, int]], fixed: int) -> None:
    graph = [(a, b) for a, b in graph if b >= fixed]  # none between two that are kept in any case
    weight = {(a, b): 0.8 + (a * 7 + b * 3) % 20 / 100 for a, b in graph}
    better, worse = np.array(graph, dtype=np.int64).reshape(-1, 2).T
    edges = Edges(better, worse, np.array(list(weight.values()), dtype=np.float64))
    components = components_of(10, [(better, worse)])
    chosen, similarity = (column.tolist() for column in choose_survivors(edges, components, "greedy", fixed))
    for node in range(10):
        options = [(-weight[a, b], a) for a, b in graph if b == node and chosen[a] == a]
        assert (-similarity[node], chosen[node]) == min(options, default=(-1.0, node))
    assert chosen[:fixed] == list(range(fixed))
    chosen, similarity = (column.tolist() for column in choose_survivors(edges, components, "connected", fixed))
    same = components.tolist()
    assert chosen == [node if node < fixed else same.index(same[node]) for node in range(10)]
    assert all(same[a] == same[b] for a, b in graph)
    for node, other in enumerate(chosen):
        expected = 1.0 if other == node else weight.get((other, node))
        assert similarity[node] == expected or (expected is None and np.isnan(similarity[node]))
