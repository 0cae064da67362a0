"""Locality-sensitive hashing: candidate pairs of documents with a common band."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import read_table, write_numbers
from tasks.core.sorted_arrays import isin_sorted
from tasks.dedup import datasketch_engine
from tasks.dedup.document_index import Corpus, Group, Numbers, first_previous, look_up, ranks, read_sketch
from tasks.dedup.exact import in_part, run_starts
from tasks.dedup.minhash import band_name

CANDIDATE = pa.schema([("first", pa.int64()), ("second", pa.int64())])
MAX_PAIRS = 1 << 20  # per bucket

Pairs = np.ndarray
"""[pairs, 2] document numbers."""


def find_candidates(
    folder: Folder, name: str, item: tuple[int, int], corpus: Corpus, parts: int, exact: Sequence[str]
) -> Outcome:
    """Pair the documents with equal hashes of one band, for one range of hashes.

    Writes `candidates/band-NN-NNNNN.parquet`: each pair in both directions, in ascending order, so that the partners of
    a document are consecutive rows. Pairs of two documents of previous crawls are omitted.
    """
    (band, part), (groups, settings) = item, corpus
    found = zip(*(_band(folder, group, band, part, parts) for group in groups), strict=True)
    numbers, keys = map(np.concatenate, found)
    dropped = np.sort(
        np.concatenate([read_table(folder, copies, ["dropped"])["dropped"].to_numpy() for copies in exact])
    )
    usable = ~isin_sorted(numbers, dropped)
    numbers, keys = numbers[usable], keys[usable]
    if settings.engine == "datasketch":
        order, starts = datasketch_engine.buckets(keys)
    else:
        order = np.lexsort((numbers, keys))
        starts = run_starts(keys[order])
    pivots = settings.bucket_pivots
    small, hot = pair_up_all(numbers[order], starts, pivots)
    pairs = [small]
    if hot:
        members = np.sort(np.concatenate(hot))
        rank = ranks(groups, members, look_up(folder, groups, members, ["id", "length"]))
        pairs += [pair_with_pivots(b[np.argsort(rank[np.searchsorted(members, b)])], pivots) for b in hot]
    both = np.concatenate(pairs)
    both = both[(both < first_previous(groups)).any(axis=1)]
    both = distinct_pairs(np.concatenate([both, both[:, ::-1]]))
    table = pa.table({"first": both[:, 0], "second": both[:, 1]}, schema=CANDIDATE)
    record = write_numbers(folder, f"candidates/band-{band:02d}-{part:05d}.parquet", table)
    return Outcome(outputs=(record,), facts={"hot_buckets": len(hot)})


def distinct_pairs(pairs: Pairs) -> Pairs:
    """Distinct pairs in ascending order."""
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return ordered[run_starts(ordered[:, 0], ordered[:, 1])[:-1]]


def pair_up_all(numbers: Numbers, starts: Numbers, pivots: int) -> tuple[Pairs, list[Numbers]]:
    """All pairs of each bucket of up to `pivots + 1` documents, and the members of the larger buckets.

    The numbers [documents] come bucket by bucket; `starts` [buckets + 1] has the start of each bucket, and the end.
    """
    sizes = np.diff(starts)
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for size in np.unique(sizes[(sizes > 1) & (sizes <= pivots + 1)]).tolist():
        buckets = numbers[starts[:-1][sizes == size][:, None] + np.arange(size)]
        one, other = np.triu_indices(size, 1)
        pairs.append(np.stack([buckets[:, one].ravel(), buckets[:, other].ravel()], axis=1))
    hot = [numbers[starts[bucket] : starts[bucket + 1]] for bucket in np.flatnonzero(sizes > pivots + 1)]
    return np.concatenate(pairs), hot


def pair_with_pivots(ranked: Numbers, pivots: int) -> Pairs:
    """Pairs of a large bucket, in order of rank, with at least one of its best members: linear in its size."""
    few = max(1, min(pivots, MAX_PAIRS // len(ranked)))
    return np.concatenate(
        [np.stack([np.full(len(ranked) - p - 1, ranked[p]), ranked[p + 1 :]], axis=1) for p in range(few)]
    )


def _band(folder: Folder, group: Group, band: int, part: int, parts: int) -> tuple[Numbers, np.ndarray]:
    """Numbers and hashes of one band, for the documents of a group in one range; short documents have no bands."""
    numbers, table = read_sketch(folder, group, [band_name(band)])
    column = table[band_name(band)]
    present = np.asarray(column.is_valid())
    keys = column.fill_null(0).to_numpy()
    inside = present & in_part(keys, part, parts)
    return numbers[inside], keys[inside]
