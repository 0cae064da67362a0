"""Exchange of shingle sets between groups of shards, so that each text is read and shingled once.

A pair belongs to the group of its member with the lower number. The texts of each group are read once, those in a pair
are shingled, and each set is written once for every group with a pair of it, in a row group of that group: the
verification of a group then reads only its row groups of every file.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import write_numbers
from tasks.core.sorted_arrays import isin_sorted, sorted_unique
from tasks.dedup import datasketch_engine, shingles
from tasks.dedup.document_index import ROW_MASK, Corpus, Group, Numbers, group_of, read_range
from tasks.dedup.lsh import CANDIDATE, Pairs, distinct_pairs
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Sets

SETS = pa.schema([("group", pa.int32()), ("number", pa.int64()), ("shingles", pa.large_binary())])
MAX_HASHES = 1 << 24  # in memory at a time: 128 MB


class NumberedSets(NamedTuple):
    """Shingle sets of documents, in ascending order of document number."""

    numbers: Numbers
    sets: Sets


def collect_group(
    folder: Folder, name: str, index: int, corpus: Corpus, candidates: Sequence[str], prefix: str = ""
) -> Outcome:
    """Write the distinct pairs of one group and the shingle sets of its documents.

    Writes `<prefix>unique/part-NNNNN.parquet` and `<prefix>sets/part-NNNNN.parquet`.
    """
    groups, settings = corpus
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

    `wanted` [sets, 2] has distinct document numbers in ascending order, each with the index of the group that reads the
    set.
    """
    with folder.writing(target) as draft, pq.ParquetWriter(draft, SETS, compression="none") as writer:
        for numbers, sets in shingled(group, sorted_unique(wanted[:, 0]), settings):
            column = _bytes_of(sets)
            some = wanted[(wanted[:, 0] >= numbers[0]) & (wanted[:, 0] <= numbers[-1])]
            for owner in np.unique(some[:, 1]).tolist():
                members = some[some[:, 1] == owner, 0]
                table = pa.table(
                    {
                        "group": np.full(len(members), owner, dtype=np.int32),
                        "number": members,
                        "shingles": column.take(pa.array(np.searchsorted(numbers, members))),
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


def shingled(
    group: Group, wanted: Numbers, settings: DedupSettings, *, ordered: bool = False
) -> Iterator[NumberedSets]:
    """Sets of shingles of these documents of a group, or their shingles in order, some `MAX_HASHES` at a time."""
    engine = datasketch_engine if settings.engine == "datasketch" else shingles
    of_texts = engine.shingle_sequences if ordered else engine.shingle_sets
    pieces = (NumberedSets(numbers, of_texts(texts, settings)) for numbers, texts in read_texts(group, wanted))
    return in_batches(pieces, MAX_HASHES)


def in_batches(pieces: Iterable[NumberedSets], members: int) -> Iterator[NumberedSets]:
    """Join consecutive sets, until they have so many members or more."""
    held: list[NumberedSets] = []
    for piece in pieces:
        held.append(piece)
        if sum(len(some.sets.values) for some in held) >= members:
            yield joined(held)
            held = []
    if held:
        yield joined(held)


def joined(pieces: Sequence[NumberedSets]) -> NumberedSets:
    """Join sets of documents in ascending order of number."""
    sizes = np.concatenate([np.diff(piece.sets.starts) for piece in pieces])
    values = [p.sets.values[p.sets.starts[0] : p.sets.starts[-1]] for p in pieces]
    starts = np.append(0, np.cumsum(sizes))
    return NumberedSets(np.concatenate([piece.numbers for piece in pieces]), Sets(np.concatenate(values), starts))


def met_sets(
    folder: Folder,
    own: Iterable[NumberedSets],
    files: Sequence[str],
    index: int,
    groups: Sequence[Group],
    first: Numbers,
    second: Numbers,
) -> Iterator[tuple[Numbers, Sets, Sets, Numbers, Numbers]]:
    """Bring the sets of pairs of documents together: `first` of a group with sets of its `own`, `second` of any.

    `files` has the file of each group, as of `write_sets`, in which those for the group with this index are.

    Yields:
        Indices of pairs, sets of both sides, and place of either document of each pair in them.
    """
    for some in own:
        here = np.flatnonzero(isin_sorted(first, some.numbers))
        for source in np.unique(group_of(groups, second[here])).tolist():
            for others in read_sets(folder, files[source], index):
                pairs = here[isin_sorted(second[here], others.numbers)]
                firsts = np.searchsorted(some.numbers, first[pairs])
                seconds = np.searchsorted(others.numbers, second[pairs])
                yield pairs, some.sets, others.sets, firsts, seconds


def _between(ascending: Numbers, low: int, high: int) -> Numbers:
    return ascending[np.searchsorted(ascending, low) : np.searchsorted(ascending, high)]


def _bytes_of(sets: Sets) -> pa.Array:
    """Sets as an Arrow column, 8 bytes per member."""
    buffers = [None, pa.py_buffer(sets.starts * 8), pa.py_buffer(sets.values)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sets.starts) - 1, buffers)


def _hashes_of(column: pa.Array) -> Sets:
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64, count=len(column) + 1, offset=8 * column.offset) // 8
    values = np.zeros(0, dtype=np.uint64) if data is None else np.frombuffer(data, dtype=np.uint64)
    return Sets(values, starts)
