"""Attention heads of each tensor-parallel rank; imports no torch.

A degree that divides the heads gives each rank the rows that it stores. Another one, such as 8 for 25 heads, gives
contiguous ranges of whole heads whose numbers differ by at most one (4, 3, 3, 3, 3, 3, 3, 3), while the parameters stay
split into equal parts. `gpt2train.parallel.uneven_heads` moves the rows between the two.
"""

from dataclasses import dataclass

from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape


@dataclass(frozen=True)
class HeadSplit:
    """Split of the heads of a model over the ranks of a tensor-parallel group.

    Attributes:
        heads: heads of queries.
        kv_heads: heads of keys and values; each belongs to `heads / kv_heads` consecutive heads of queries.
        tp: number of ranks, at most `heads`.
    """

    heads: int
    kv_heads: int
    tp: int

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
