"""Rows of documents and pages in the Parquet files of finished steps.

Only files that a manifest names are read, column by column and row group by row group; nothing is written or indexed.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder

T = TypeVar("T")
Row = dict[str, Any]
THREADS = 8  # files that are read at a time
REMEDY = "run the data flow again to restore it"


class Place(NamedTuple):
    """Row of a file."""

    file: str
    group: int  # row group
    row: int  # row within the row group
    number: int  # row within the file


def opened(folder: Folder, name: str) -> pq.ParquetFile:
    """Open a Parquet file; RunError if it is missing or damaged."""
    try:
        return pq.ParquetFile(folder.open(name), pre_buffer=not folder.is_local)
    except (OSError, pa.ArrowInvalid) as error:
        raise RunError(f"{folder.url}/{name} cannot be read; {REMEDY}") from error


def find_row(
    folder: Folder,
    names: Sequence[str],
    column: str,
    value: str,
    hint: str = "",
    end: float = float("inf"),
    partial: bool = False,
) -> Place | None:
    """Find the first row with a value in a column; arguments as of `find_rows`."""
    return next((place for _, place in find_rows(folder, names, column, {value}, hint, end, partial)), None)


def find_rows(
    folder: Folder,
    names: Sequence[str],
    column: str,
    values: Collection[str],
    hint: str = "",
    end: float = float("inf"),
    partial: bool = False,
) -> Iterator[tuple[str, Place]]:
    """Yield the first row of each value in a column; files are read concurrently, and only this column.

    A file with the name of `hint` is read first, none after `end` on the monotonic clock. Files without such a column
    are passed over, with `partial` those that are gone too.
    """
    remaining = set(values)

    def look(name: str) -> list[tuple[str, Place]]:
        wanted, found, start = set(remaining), list[tuple[str, Place]](), 0
        if not wanted or time.monotonic() >= end or (partial and folder.size(name) is None):
            return []
        with opened(folder, name) as file:
            if column not in file.schema_arrow.names:
                return []
            for group in range(file.num_row_groups):
                cells = file.read_row_group(group, columns=[column])[column]
                for row in np.flatnonzero(pc.is_in(cells, pa.array(sorted(wanted), cells.type))).tolist():
                    if (value := cells[row].as_py()) in wanted:
                        wanted.discard(value)
                        found.append((value, Place(name, group, row, start + row)))
                if not wanted:
                    break
                start += len(cells)
        return found

    hinted = [name for name in names if name.rpartition("/")[2] == hint.rpartition("/")[2]]
    others = [name for name in names if name not in hinted]
    for part in (hinted, others):
        for found in _concurrently(look, part):
            for value, place in found:
                if value in remaining:
                    remaining.discard(value)
                    yield value, place
            if not remaining:
                return


def read_row(folder: Folder, place: Place) -> Row:
    """Read one row, and only its row group."""
    with opened(folder, place.file) as file:
        found: Row = file.read_row_group(place.group).slice(place.row, 1).to_pylist()[0]
        return found


def matches(
    folder: Folder,
    names: Sequence[str],
    column: str,
    test: Callable[[pa.ChunkedArray], Any],
    columns: Collection[str] | None = None,
    partial: bool = False,
) -> Iterator[list[Row]]:
    """Yield for each file its rows that pass a test of a column, with some or all columns, read concurrently in order.

    With `partial` a file that is gone has no rows.
    """

    def look(name: str) -> list[Row]:
        rows: list[Row] = []
        if partial and folder.size(name) is None:
            return rows
        with opened(folder, name) as file:
            names = file.schema_arrow.names
            known = [name for name in columns or names if name in names]
            for group in range(file.num_row_groups) if column in names else ():
                passed = np.flatnonzero(pc.fill_null(test(file.read_row_group(group, [column])[column]), False))
                if len(passed):
                    rows += file.read_row_group(group, known).take(pa.array(passed)).to_pylist()
        return rows

    yield from _concurrently(look, names)


def column_of(folder: Folder, names: Sequence[str], columns: list[str]) -> pa.Table | None:
    """Read columns of all files; None if there are no files."""

    def look(name: str) -> pa.Table:
        with opened(folder, name) as file:
            return file.read(columns=columns)

    tables = list(_concurrently(look, names))
    return pa.concat_tables(tables) if tables else None


def _concurrently(function: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
    """Apply a function to names, a few at a time; what follows is not begun once the caller stops."""
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(names), 2 * THREADS):
            yield from pool.map(function, names[start : start + 2 * THREADS])
