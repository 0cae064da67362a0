"""Costs of heads that the tensor-parallel degree does not divide, on the rank that has most of them.

All are 0 for a degree that divides the heads (`gpt2train.parallel.head_split`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gpt2train.model.shape import Shape
from gpt2train.parallel.head_split import HeadSplit


@dataclass(frozen=True)
class UnevenHeads:
    """Costs of an attention, in heads and in numbers of its weights.

    Attributes:
        queries: heads of queries of the rank, times the degree, above those of the model: as if a model with so many
            more heads were split evenly.
        keys: heads of keys and values that it keeps, likewise.
        products: heads of keys and values that it computes, likewise; it may repeat some of them.
        weights: numbers of the weights of its heads that are a copy of their own beside its shards.
        moved: numbers of weights that a rank receives in a forward pass, the largest of all ranks.
    """

    queries: int = 0
    keys: int = 0
    products: int = 0
    weights: int = 0
    moved: float = 0.0


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
