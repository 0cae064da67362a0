"""Attention heads of each tensor-parallel rank, and the cost of uneven ones; imports no torch.

A degree that divides the heads gives each rank the rows that it stores. Another one, such as 8 for 25 heads, gives
contiguous ranges of whole heads whose numbers differ by at most one (4, 3, 3, 3, 3, 3, 3, 3), while the parameters stay
split into equal parts. `gpt2train.parallel.uneven_heads` moves the rows between the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape


@dataclass(frozen=True)
class HeadSplit:
    """Split of the heads of a model over the ranks of a tensor-parallel group."""

    heads: int  # heads of queries
    kv_heads: int  # heads of keys and values; each belongs to `heads / kv_heads` consecutive heads of queries
    tp: int  # number of ranks, at most `heads`

    @staticmethod
    def of(shape: Shape, tp: int) -> "HeadSplit":
        """Split of the heads of a shape."""
        return HeadSplit(shape.heads, MODELS[shape.family].kv_heads(shape), tp)

    @property
    def even(self) -> bool:
        """True if all ranks have the same number of heads, and of those of keys and values."""
        return self.heads % self.tp == 0 and self.kv_heads % self.tp == 0

    def queries(self, rank: int) -> range:
        """Heads of queries of a rank: those whose rows begin in its shard, so that few are stored elsewhere."""
        return range(-(-rank * self.heads // self.tp), -(-(rank + 1) * self.heads // self.tp))

    def keys(self, rank: int) -> range:
        """Heads of keys and values that belong to the heads of queries of a rank; other ranks may have some of them."""
        group, queries = self.heads // self.kv_heads, self.queries(rank)
        return range(queries.start // group, (queries.stop - 1) // group + 1)

    def repeats(self, rank: int) -> tuple[int, ...]:
        """Heads of queries that belong to each of the heads of keys and values; empty if these numbers are equal."""
        group, queries = self.heads // self.kv_heads, self.queries(rank)
        numbers = tuple(len(common(queries, range(key * group, (key + 1) * group))) for key in self.keys(rank))
        return () if len(set(numbers)) == 1 else numbers

    def computed_keys(self, rank: int) -> int:
        """Number of heads of keys and values in a rank's attention: with unequal numbers one for each of queries."""
        return len(self.queries(rank)) if self.repeats(rank) else len(self.keys(rank))

    @property
    def fullest(self) -> int:
        """First of the ranks with the most heads of queries, keys and values, which needs the most memory and time."""
        return max(range(self.tp), key=lambda rank: len(self.queries(rank)) + self.computed_keys(rank))


def common(one: range, other: range) -> range:
    """Numbers that are in both of two ranges; range(0) if there are none."""
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return range(start, stop) if start < stop else range(0)


@dataclass(frozen=True)
class UnevenHeads:
    """Costs of an attention on the rank that has most heads, in heads and in numbers of its weights.

    All are 0 for a degree that divides the heads.
    """

    queries: int = 0
    """Heads of queries of the rank, times the degree, above those of the model: as if a model with so many more heads
    were split evenly."""
    keys: int = 0  # heads of keys and values that it keeps, likewise
    products: int = 0  # heads of keys and values that it computes, likewise; it may repeat some of them
    weights: int = 0  # numbers of the weights of its heads that are a copy of their own beside its shards
    moved: float = 0.0  # numbers of weights that a rank receives in a forward pass, the largest of all ranks


@cache
def uneven_heads(shape: Shape, tp: int) -> UnevenHeads:
    """Costs of an attention of a model."""
    split = HeadSplit.of(shape, tp)
    if split.even:
        return UnevenHeads()
    rank, numbers = split.fullest, shape.head_dim * shape.hidden  # numbers of the weight of a head
    queries, keys = len(split.queries(rank)), len(split.keys(rank))
    moved = _moved(split.heads, [split.queries(one) for one in range(tp)])
    moved += _moved(split.kv_heads, [split.keys(one) for one in range(tp)])
    return UnevenHeads(
        queries=queries * tp - split.heads,
        keys=split.computed_keys(rank) * tp - split.kv_heads,
        products=keys * tp - split.kv_heads,
        weights=2 * numbers * (keys + (queries if split.heads % tp else 0)),
        moved=2 * numbers * moved,
    )


def _moved(heads: int, used: Sequence[range]) -> float:
    """Largest number of heads that a rank uses and does not store, where all store equal parts of them."""
    share = heads / len(used)
    stored = [(rank * share, (rank + 1) * share) for rank in range(len(used))]
    pairs = list(zip(used, stored, strict=True))
    return max(len(own) - max(0.0, min(own.stop, end) - max(own.start, start)) for own, (start, end) in pairs)
