"""Exact duplicates: all but the best-ranked copy are dropped before the near-duplicate stages."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import write_numbers
from tasks.dedup.document_index import Group, Numbers, first_previous, look_up, ranks, read_sketch
from tasks.dedup.shingles import Hashes

EXACT = pa.schema([("dropped", pa.int64()), ("kept", pa.int64())])


def in_part(keys: Hashes, part: int, parts: int) -> np.ndarray:
    """Mask of the keys in one of `parts` equal ranges; `parts` is a power of two."""
    bits = parts.bit_length() - 1
    return keys >> np.uint64(64 - bits) == np.uint64(part) if bits else np.ones(len(keys), dtype=bool)


def run_starts(*ordered: np.ndarray) -> Numbers:
    """[runs + 1] start of each run of equal keys in sorted keys, and the end."""
    if not len(ordered[0]):
        return np.zeros(1, dtype=np.int64)
    new = np.zeros(len(ordered[0]), dtype=bool)
    new[0] = True
    for keys in ordered:
        new[1:] |= keys[1:] != keys[:-1]
    return np.append(np.flatnonzero(new), len(new))


def find_exact(folder: Folder, name: str, part: int, parts: int, groups: Sequence[Group]) -> Outcome:
    """Map exact duplicates to their best-ranked copy, for one range of content hashes.

    Writes `exact/part-NNNNN.parquet` in ascending order of the dropped number; documents of previous crawls are not
    dropped.
    """
    found = zip(*(_contents(folder, group, part, parts) for group in groups), strict=True)
    numbers, keys = map(np.concatenate, found)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    starts = run_starts(keys[order, 0], keys[order, 1])
    run = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    repeated = np.diff(starts)[run] > 1
    members, run = numbers[order[repeated]], run[repeated]
    kept = members.copy()
    if len(members):
        ascending = np.sort(members)
        rank = ranks(groups, ascending, look_up(folder, groups, ascending, ["id", "length"]))
        starts = run_starts(run)
        best = np.minimum.reduceat(rank[np.searchsorted(ascending, members)], starts[:-1])
        kept = ascending[np.argsort(rank)[np.repeat(best, np.diff(starts))]]
    dropped = np.flatnonzero((members != kept) & (members < first_previous(groups)))
    dropped = dropped[np.argsort(members[dropped])]
    table = pa.table({"dropped": members[dropped], "kept": kept[dropped]}, schema=EXACT)
    return Outcome(outputs=(write_numbers(folder, f"exact/part-{part:05d}.parquet", table),))


def _contents(folder: Folder, group: Group, part: int, parts: int) -> tuple[Numbers, Hashes]:
    """Numbers, and content hashes [documents, 2], of the documents of a group in one range."""
    numbers, table = read_sketch(folder, group, ["content"])
    chunks = [chunk for chunk in table["content"].chunks if len(chunk)]
    pieces = [
        np.frombuffer(chunk.buffers()[1], dtype=">u8", count=2 * len(chunk), offset=16 * chunk.offset)
        for chunk in chunks
    ]
    keys = np.concatenate([np.zeros(0, dtype=np.uint64), *pieces]).astype(np.uint64).reshape(-1, 2)
    inside = in_part(keys[:, 0], part, parts)
    return numbers[inside], keys[inside]
