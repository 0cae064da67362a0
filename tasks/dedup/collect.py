"""Brings together what a verification needs, so that each text is read once and each set of shingles travels once.

A pair belongs to the group of its member with the lower number. Each group's texts are read once, those that are in a
pair are shingled, and each set is written once for every group that has a pair with it, in a row group of that group:
the verification of a group then reads its row groups of every file and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dedup.candidates import CANDIDATE, distinct_pairs
from tasks.dedup.groups import ROW, Group, Numbers, group_of, read_range, write_numbers
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Sets, shingle_sets
from tasks.steps import Outcome
from tasks.storage import Folder

SETS = pa.schema([("group", pa.int32()), ("number", pa.int64()), ("shingles", pa.large_binary())])
MOST_HASHES = 1 << 24  # in memory at a time: 128 MB


@dataclass(frozen=True)
class Numbered:
    """Sets of documents, ascending by number."""

    numbers: Numbers
    sets: Sets


def collect_group(
    folder: Folder,
    name: str,
    place: int,
    groups: Sequence[Group],
    candidates: Sequence[str],
    settings: DedupSettings,
) -> Outcome:
    """Write the distinct pairs of one group, `unique/part-NNNNN.parquet`, and the sets of its documents,
    `sets/part-NNNNN.parquet`."""
    group = groups[place]
    pairs = np.empty((0, 2), dtype=np.int64)
    for part in candidates:  # one after the other: what is alike is so in most bands
        table = read_range(folder, part, "first", group.low, group.high)
        more = np.stack([table["first"].to_numpy(), table["second"].to_numpy()], axis=1)
        pairs = distinct_pairs(np.concatenate([pairs, more]))
    own = pairs[pairs[:, 0] < pairs[:, 1]]
    unique = pa.table({"first": own[:, 0], "second": own[:, 1]}, schema=CANDIDATE)
    number = place
    records = [write_numbers(folder, f"unique/part-{number:05d}.parquet", unique)]
    wanted = distinct_pairs(np.stack([pairs[:, 0], group_of(groups, pairs.min(axis=1))], axis=1))
    target = f"sets/part-{number:05d}.parquet"
    with folder.writing(target) as draft, pq.ParquetWriter(draft, SETS, compression="none") as writer:
        for numbers, sets in _in_pieces(_sets_of(group, np.unique(wanted[:, 0]), settings)):
            some = wanted[(wanted[:, 0] >= numbers[0]) & (wanted[:, 0] <= numbers[-1])]
            for owner in np.unique(some[:, 1]).tolist():
                goes = some[some[:, 1] == owner, 0]
                table = pa.table(
                    {
                        "group": np.full(len(goes), owner, dtype=np.int32),
                        "number": goes,
                        "shingles": sets.take(pa.array(np.searchsorted(numbers, goes))),
                    },
                    schema=SETS,
                )
                writer.write_table(table, row_group_size=len(table))
    records.append(folder.record(target))
    return Outcome(outputs=tuple(records))


def read_sets(folder: Folder, name: str, group: int) -> Iterator[Numbered]:
    """The sets in a file that are for one group, in pieces of bounded size."""
    with folder.open(name) as file:
        parquet = pq.ParquetFile(file)
        for place in range(parquet.metadata.num_row_groups):
            if parquet.metadata.row_group(place).column(0).statistics.min == group:
                for batch in parquet.iter_batches(ROW, row_groups=[place], columns=["number", "shingles"]):
                    yield Numbered(batch["number"].to_numpy(), _hashes_of(batch["shingles"]))


def _sets_of(group: Group, wanted: Numbers, settings: DedupSettings) -> Iterator[tuple[Numbers, Sets]]:
    """The sets of these documents of a group, a row group of texts at a time."""
    for place, shard in enumerate(group.shards):
        low = (group.start + place) << 32
        if not len(_between(wanted, low, low + ROW)):
            continue
        with group.documents.open(shard) as file:
            parquet = pq.ParquetFile(file)
            first = low
            for piece in range(parquet.metadata.num_row_groups):
                rows = parquet.metadata.row_group(piece).num_rows
                numbers = _between(wanted, first, first + rows)
                if len(numbers):
                    texts = parquet.read_row_group(piece, columns=["text"])["text"].take(pa.array(numbers - first))
                    yield numbers, shingle_sets(texts, settings)
                first += rows


def _between(ascending: Numbers, low: int, high: int) -> Numbers:
    return ascending[np.searchsorted(ascending, low) : np.searchsorted(ascending, high)]


def _in_pieces(pieces: Iterator[tuple[Numbers, Sets]]) -> Iterator[tuple[Numbers, pa.Array]]:
    """Join small pieces to larger ones: numbers, and the sets as bytes."""
    numbers: list[Numbers] = []
    sets: list[pa.Array] = []
    held = 0
    for some, found in pieces:
        numbers.append(some)
        sets.append(_bytes_of(found))
        held += len(found.values)
        if held >= MOST_HASHES:
            yield np.concatenate(numbers), pa.concat_arrays(sets)
            numbers, sets, held = [], [], 0
    if numbers:
        yield np.concatenate(numbers), pa.concat_arrays(sets)


def _bytes_of(sets: Sets) -> pa.Array:
    """Sets as an Arrow column, 8 bytes a member."""
    buffers = [None, pa.py_buffer(sets.starts * 8), pa.py_buffer(sets.values)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sets.starts) - 1, buffers)


def _hashes_of(column: pa.Array) -> Sets:
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64, count=len(column) + 1, offset=8 * column.offset) // 8
    values = np.zeros(0, dtype=np.uint64) if data is None else np.frombuffer(data, dtype=np.uint64)
    return Sets(values, starts)
