"""Exchange of shingle sets between groups of shards, so that each text is read and shingled once.

A pair belongs to the group of its member with the lower number. The texts of each group are read once, those in a pair
are shingled, and each set is written once for every group with a pair of it, in a row group of that group: the
verification of a group then reads only its row groups of every file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import write_numbers
from tasks.dedup import datasketch_engine
from tasks.dedup.document_index import ROW_MASK, Group, Numbers, group_of, read_range
from tasks.dedup.lsh import CANDIDATE, Pairs, distinct_pairs
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Sets, shingle_sets

SETS = pa.schema([("group", pa.int32()), ("number", pa.int64()), ("shingles", pa.large_binary())])
MAX_HASHES = 1 << 24  # in memory at a time: 128 MB


@dataclass(frozen=True)
class NumberedSets:
    """Shingle sets of documents, in ascending order of document number."""

    numbers: Numbers
    sets: Sets


def collect_group(
    folder: Folder,
    name: str,
    index: int,
    groups: Sequence[Group],
    candidates: Sequence[str],
    settings: DedupSettings,
    prefix: str = "",
) -> Outcome:
    """Write the distinct pairs of one group and the shingle sets of its documents.

    Writes `<prefix>unique/part-NNNNN.parquet` and `<prefix>sets/part-NNNNN.parquet`.
    """
    group = groups[index]
    pairs = np.empty((0, 2), dtype=np.int64)
    for part in candidates:  # one after the other: similar documents share most bands
        table = read_range(folder, part, "first", group.low, group.high)
        more = np.stack([table["first"].to_numpy(), table["second"].to_numpy()], axis=1)
        pairs = distinct_pairs(np.concatenate([pairs, more]))
    own = pairs[pairs[:, 0] < pairs[:, 1]]
    unique = pa.table({"first": own[:, 0], "second": own[:, 1]}, schema=CANDIDATE)
    record = write_numbers(folder, f"{prefix}unique/part-{index:05d}.parquet", unique)
    wanted = distinct_pairs(np.stack([pairs[:, 0], group_of(groups, pairs.min(axis=1))], axis=1))
    return Outcome(
        outputs=(record, write_sets(folder, f"{prefix}sets/part-{index:05d}.parquet", group, wanted, settings))
    )


def write_sets(folder: Folder, target: str, group: Group, wanted: Pairs, settings: DedupSettings) -> FileRecord:
    """Write the shingle sets of documents of a group for the groups that compare them.

    Args:
        folder: folder of the step.
        target: name of the file.
        group: group of the documents.
        wanted: [sets, 2] distinct document numbers in ascending order, with the index of the group that reads the set.
        settings: kind of the shingles.
    """
    with folder.writing(target) as draft, pq.ParquetWriter(draft, SETS, compression="none") as writer:
        for numbers, sets in _in_chunks(_sets_of(group, np.unique(wanted[:, 0]), settings)):
            some = wanted[(wanted[:, 0] >= numbers[0]) & (wanted[:, 0] <= numbers[-1])]
            for owner in np.unique(some[:, 1]).tolist():
                members = some[some[:, 1] == owner, 0]
                table = pa.table(
                    {
                        "group": np.full(len(members), owner, dtype=np.int32),
                        "number": members,
                        "shingles": sets.take(pa.array(np.searchsorted(numbers, members))),
                    },
                    schema=SETS,
                )
                writer.write_table(table, row_group_size=len(table))
    return folder.record(target)


def read_sets(folder: Folder, name: str, group: int) -> Iterator[NumberedSets]:
    """Sets of a file that are for one group, in chunks of bounded size."""
    with folder.open(name) as file:
        parquet = pq.ParquetFile(file)
        for number in range(parquet.metadata.num_row_groups):
            if parquet.metadata.row_group(number).column(0).statistics.min == group:
                for batch in parquet.iter_batches(ROW_MASK, row_groups=[number], columns=["number", "shingles"]):
                    yield NumberedSets(batch["number"].to_numpy(), _hashes_of(batch["shingles"]))


def read_texts(group: Group, wanted: Numbers) -> Iterator[tuple[Numbers, pa.ChunkedArray]]:
    """Texts of these documents of a group, in ascending order of number, one row group of texts at a time."""
    for index, shard in enumerate(group.shards):
        low = (group.start + index) << 32
        if not len(_between(wanted, low, low + ROW_MASK)):
            continue
        with group.documents.open(shard) as file:
            parquet = pq.ParquetFile(file)
            first = low
            for piece in range(parquet.metadata.num_row_groups):
                rows = parquet.metadata.row_group(piece).num_rows
                numbers = _between(wanted, first, first + rows)
                if len(numbers):
                    texts = parquet.read_row_group(piece, columns=["text"])["text"].take(pa.array(numbers - first))
                    yield numbers, texts
                first += rows


def _sets_of(group: Group, wanted: Numbers, settings: DedupSettings) -> Iterator[tuple[Numbers, Sets]]:
    """Shingle sets of these documents of a group, one row group of texts at a time."""
    sets_of = datasketch_engine.shingle_sets if settings.engine == "datasketch" else shingle_sets
    for numbers, texts in read_texts(group, wanted):
        yield numbers, sets_of(texts, settings)


def _between(ascending: Numbers, low: int, high: int) -> Numbers:
    return ascending[np.searchsorted(ascending, low) : np.searchsorted(ascending, high)]


def _in_chunks(pieces: Iterator[tuple[Numbers, Sets]]) -> Iterator[tuple[Numbers, pa.Array]]:
    """Join small chunks to larger ones: numbers, and the sets as bytes."""
    numbers: list[Numbers] = []
    sets: list[pa.Array] = []
    held = 0
    for some, found in pieces:
        numbers.append(some)
        sets.append(_bytes_of(found))
        held += len(found.values)
        if held >= MAX_HASHES:
            yield np.concatenate(numbers), pa.concat_arrays(sets)
            numbers, sets, held = [], [], 0
    if numbers:
        yield np.concatenate(numbers), pa.concat_arrays(sets)


def _bytes_of(sets: Sets) -> pa.Array:
    """Sets as an Arrow column, 8 bytes per member."""
    buffers = [None, pa.py_buffer(sets.starts * 8), pa.py_buffer(sets.values)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sets.starts) - 1, buffers)


def _hashes_of(column: pa.Array) -> Sets:
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64, count=len(column) + 1, offset=8 * column.offset) // 8
    values = np.zeros(0, dtype=np.uint64) if data is None else np.frombuffer(data, dtype=np.uint64)
    return Sets(values, starts)
