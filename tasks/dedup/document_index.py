"""Document numbers, groups of shards and ranks.

The number of a document is `shard << 32 | row`. The shards of this crawl are numbered first, those of previous crawls
after them; the row of a previous document is its index among the documents that its deduplication kept. Shards are
processed in groups, so that a hundred million documents make some hundreds of files and not a hundred thousand.

The rank of documents decides which one is kept: documents of a previous crawl first, then the longer text, then the
lower id. The result does not depend on the distribution of the documents over shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import FileRecord, Folder
from tasks.core.shards import in_groups, read_table
from tasks.core.sorted_arrays import isin_sorted
from tasks.dedup.settings import DedupSettings

Numbers = npt.NDArray[np.int64]

ROW_MASK = (1 << 32) - 1
GROUP_ROWS = 1 << 16
GROUP_BYTES = 64 << 20  # of Parquet: some 170 MB of text
MAX_GROUPS = 512  # above this groups grow instead: every verification reads a part of the file of every group


@dataclass(frozen=True)
class Group:
    """Consecutive shards that are processed together."""

    documents: Folder
    shards: tuple[str, ...]
    start: int  # number of the first shard
    previous: int | None = None  # index of the previous crawl of the shards; None: this crawl
    sketches: Folder | None = None  # folder of the sketch; None: folder of the step
    sketch: str = ""  # name of the sketch file; empty until it is written
    rows: int = 0  # number of documents in the sketch
    origin: int = 0  # number of the first shard within its own crawl
    dropped: tuple[str, ...] = ()  # files with the documents of the sketch that were dropped, so that they have no text

    @property
    def low(self) -> int:
        """First document number of the group."""
        return self.start << 32

    @property
    def high(self) -> int:
        """First document number after the group."""
        return (self.start + len(self.shards)) << 32


class Corpus(NamedTuple):
    """All documents that are compared, and the settings by which they are."""

    groups: Sequence[Group]  # those of this crawl first
    settings: DedupSettings


def make_groups(documents: Folder, records: Sequence[FileRecord]) -> list[Group]:
    """Divide the shards of this crawl into groups by their rows and bytes alone."""
    cuts = in_groups(records, GROUP_ROWS, GROUP_BYTES, MAX_GROUPS)
    return [Group(documents, tuple(records[shard].name for shard in shards), shards.start) for shards in cuts]


def document_numbers(shard: int, row: int, count: int) -> Numbers:
    """Numbers of `count` documents of a shard, starting at a row."""
    return np.arange(row, row + count, dtype=np.int64) | (shard << 32)


def group_of(groups: Sequence[Group], numbers: Numbers) -> Numbers:
    """Index of the group of each document."""
    return np.searchsorted(np.array([group.low for group in groups]), numbers, side="right") - 1


def read_sketch(folder: Folder, group: Group, columns: Sequence[str]) -> tuple[Numbers, pa.Table]:
    """Numbers and columns of the documents of a group, in ascending order of number."""
    table = read_table(group.sketches or folder, group.sketch, ["number", *columns])
    numbers = table["number"].to_numpy()
    if group.previous is None:
        return numbers, table
    # Of a previous crawl: without the documents that it dropped, and numbered among those that it kept.
    low, high = group.origin << 32, (group.origin + len(group.shards)) << 32
    dropped = read_dropped(group.sketches or folder, group.dropped, low, high, ["number"])["number"].to_numpy()
    kept = np.flatnonzero(~isin_sorted(numbers, dropped))
    numbers = numbers[kept]
    before = np.searchsorted(dropped, numbers) - np.searchsorted(dropped, numbers & ~np.int64(ROW_MASK))
    return numbers - before + ((group.start - group.origin) << 32), table.take(kept)


def read_dropped(
    folder: Folder, names: Sequence[str], low: int, high: int, columns: list[str] | None = None
) -> pa.Table:
    """Dropped documents with a number in [low, high), in ascending order of number."""
    parts = [read_range(folder, name, "number", low, high, columns) for name in names]
    return pa.concat_tables(parts).sort_by("number")


def read_range(
    folder: Folder, name: str, column: str, low: int, high: int, columns: list[str] | None = None
) -> pa.Table:
    """Rows whose value of a column is in [low, high); row groups outside the range are not read."""
    return read_table(folder, name, columns, [(column, ">=", low), (column, "<", high)])


def look_up(folder: Folder, groups: Sequence[Group], numbers: Numbers, columns: Sequence[str]) -> pa.Table:
    """Columns of the documents with these ascending numbers; one group is in memory at a time."""
    bounds = np.searchsorted(numbers, [group.low for group in groups] + [groups[-1].high])
    parts = []
    for index, group in enumerate(groups):
        wanted = numbers[bounds[index] : bounds[index + 1]]
        if len(wanted):
            all_numbers, table = read_sketch(folder, group, columns)
            parts.append(table.select(columns).take(np.searchsorted(all_numbers, wanted)))
    return pa.concat_tables(parts)


def ranks(groups: Sequence[Group], numbers: Numbers, documents: pa.Table) -> Numbers:
    """Rank of each document, 0 for the best, by its number and by `id` and `length` of `documents`."""
    keys = {
        "new": pa.array(numbers < first_previous(groups)),
        "length": documents["length"],
        "id": documents["id"],
        "number": pa.array(numbers),
    }
    orders = [("new", "ascending"), ("length", "descending"), ("id", "ascending"), ("number", "ascending")]
    order = pc.sort_indices(pa.table(keys), sort_keys=orders).to_numpy()
    return np.argsort(order)  # the inverse permutation


def first_previous(groups: Sequence[Group]) -> int:
    """First number of a document of a previous crawl; the end of all numbers if there is none."""
    return next((group.low for group in groups if group.previous is not None), groups[-1].high)
