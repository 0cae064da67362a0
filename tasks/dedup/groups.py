"""Documents by number, and the files that know them.

A document's number is `shard << 32 | row`. The shards of this crawl come first, those of earlier ones after them; an
earlier document's row is its place in what that deduplication kept. Shards are handled in groups, so that a hundred
million documents make some hundreds of files and not a hundred thousand.

Rank decides who stays: a document of an earlier crawl before one of this, then the longer text, then the lower id; so
the answer does not depend on how documents are spread over shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.shards import in_groups, read_table
from tasks.storage import FileRecord, Folder

Numbers = npt.NDArray[np.int64]

ROW = (1 << 32) - 1
GROUP_ROWS = 1 << 16
GROUP_BYTES = 64 << 20  # of Parquet: some 170 MB of text
MOST_GROUPS = 512  # from there on groups grow: every verification reads a piece of every group's file
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Group:
    """Some shards in a row."""

    documents: Folder
    shards: tuple[str, ...]
    start: int
    """Number of the first shard."""
    earlier: int | None = None
    """Number of the earlier crawl that they are of; None: of this crawl."""
    sketches: Folder | None = None
    """Folder of the sketch; None: the step's own."""
    sketch: str = ""
    """File of the sketch; empty until it is written."""
    rows: int = 0
    """Documents in the sketch."""
    origin: int = 0
    """Number of the first shard in the crawl that it is of."""
    dropped: tuple[str, ...] = ()
    """Files that say which documents of the sketch are not among the texts."""

    @property
    def low(self) -> int:
        """The first number of the group."""
        return self.start << 32

    @property
    def high(self) -> int:
        """The first number after the group."""
        return (self.start + len(self.shards)) << 32


def cut(documents: Folder, records: Sequence[FileRecord]) -> list[Group]:
    """Cut the shards of this crawl into groups, by their rows and bytes alone."""
    cuts = in_groups(records, GROUP_ROWS, GROUP_BYTES, MOST_GROUPS)
    return [Group(documents, tuple(records[place].name for place in places), places.start) for places in cuts]


def numbered(shard: int, row: int, count: int) -> Numbers:
    """Numbers of `count` documents of a shard, from a row on."""
    return np.arange(row, row + count, dtype=np.int64) | (shard << 32)


def group_of(groups: Sequence[Group], numbers: Numbers) -> Numbers:
    """Place of the group that each document is in."""
    return np.searchsorted(np.array([group.low for group in groups]), numbers, side="right") - 1


def read_sketch(folder: Folder, group: Group, columns: Sequence[str]) -> tuple[Numbers, pa.Table]:
    """Numbers and these columns of a group's documents, in the order of the numbers."""
    table = read_table(group.sketches or folder, group.sketch, ["number", *columns])
    numbers = table["number"].to_numpy()
    if group.earlier is None:
        return numbers, table
    # Of an earlier crawl: without what it dropped, and numbered by place in what it kept.
    low, high = group.origin << 32, (group.origin + len(group.shards)) << 32
    gone = read_dropped(group.sketches or folder, group.dropped, low, high, ["number"])["number"].to_numpy()
    stays = np.flatnonzero(~member(numbers, gone))
    numbers = numbers[stays]
    before = np.searchsorted(gone, numbers) - np.searchsorted(gone, numbers & ~np.int64(ROW))
    return numbers - before + ((group.start - group.origin) << 32), table.take(stays)


def read_dropped(folder: Folder, names: Sequence[str], low: int, high: int, columns: list[str] | None) -> pa.Table:
    """Rows of the files of dropped documents with a number in a range, in order of the number."""
    parts = [read_range(folder, name, "number", low, high, columns) for name in names]
    return pa.concat_tables(parts).sort_by("number")


def read_range(
    folder: Folder, name: str, column: str, low: int, high: int, columns: list[str] | None = None
) -> pa.Table:
    """Rows whose number is in a range; row groups that lie outside it are not read."""
    with folder.open(name) as file:
        return pq.read_table(file, columns=columns, filters=[(column, ">=", low), (column, "<", high)])


def member(numbers: Numbers, ascending: Numbers) -> npt.NDArray[np.bool_]:
    """Which numbers are among ascending ones."""
    if not len(ascending):
        return np.zeros(len(numbers), dtype=bool)
    return ascending[np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)] == numbers


def look_up(folder: Folder, groups: Sequence[Group], numbers: Numbers, columns: Sequence[str]) -> pa.Table:
    """These columns of the documents with these ascending numbers; one group in memory at a time."""
    bounds = np.searchsorted(numbers, [group.low for group in groups] + [groups[-1].high])
    parts = []
    for place, group in enumerate(groups):
        wanted = numbers[bounds[place] : bounds[place + 1]]
        if len(wanted):
            all_numbers, table = read_sketch(folder, group, columns)
            parts.append(table.select(columns).take(np.searchsorted(all_numbers, wanted)))
    return pa.concat_tables(parts)


def by_rank(groups: Sequence[Group], numbers: Numbers, documents: pa.Table) -> Numbers:
    """Places of documents, best rank first.

    Args:
        groups: all groups.
        numbers: of the documents.
        documents: their `id` and `length`.
    """
    keys = {
        "new": pa.array(numbers < first_earlier(groups)),
        "length": documents["length"],
        "id": documents["id"],
        "number": pa.array(numbers),
    }
    orders = [("new", "ascending"), ("length", "descending"), ("id", "ascending"), ("number", "ascending")]
    return pc.sort_indices(pa.table(keys), sort_keys=orders).to_numpy().astype(np.int64)


def first_earlier(groups: Sequence[Group]) -> int:
    """The first number that is of an earlier crawl; after all numbers where there is none."""
    return next((group.low for group in groups if group.earlier is not None), groups[-1].high)


def write_numbers(folder: Folder, name: str, table: pa.Table) -> FileRecord:
    """Write a table of numbers and hashes as one Parquet file, in large row groups and without dictionaries."""
    with folder.writing(name) as draft:
        pq.write_table(
            table.combine_chunks(),
            draft,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            row_group_size=ROWS_AT_ONCE,
        )
    return folder.record(name, rows=table.num_rows)
