"""Finished steps of an output folder, and look-ups in their Parquet files.

Only files that a manifest names are read, column by column and row group by row group; nothing is written or indexed.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.errors import RunError, UserError
from gpt2train.store.output import Origins
from tasks.core.forgotten import check_no_removal
from tasks.core.manifest import MANIFEST, Manifest, read_manifest
from tasks.core.storage import FileRecord, Folder

T = TypeVar("T")
THREADS = 8  # files that are read at a time
# Order of the steps that come from folders without a link between them (outputs of older runs).
USUAL = (
    *("urls", "pages", "warcs", "documents", "clean", "boilerplate", "decontaminated"),
    *("dedup", "substrings", "shuffled", "evalset", "tokens"),
)
REMEDY = "run the data flow again to restore it"


class Place(NamedTuple):
    """Row of a file."""

    file: str
    group: int
    """Row group."""
    row: int
    """Row within the row group."""
    number: int
    """Row within the file."""


@dataclass(frozen=True)
class FinishedStep:
    """Finished step with its files."""

    folder: Folder
    manifest: Manifest

    @property
    def name(self) -> str:
        """Folder of the step."""
        return self.manifest.folder

    @property
    def outputs(self) -> list[str]:
        """Parquet files of its output."""
        return _parquet(self.manifest.outcome.outputs)

    @property
    def rejected(self) -> list[str]:
        """Parquet files of its rejected rows."""
        return _parquet(self.manifest.outcome.rejected)

    def audit(self, kind: str) -> list[str]:
        """Parquet files of its audit in one of its folders."""
        return [name for name in _parquet(self.manifest.outcome.audit) if name.startswith(f"{kind}/")]

    def columns(self) -> list[str]:
        """Columns of its output; empty if it has no Parquet files, or they are gone."""
        for name in self.outputs[:1]:
            with opened(self.folder, name) as file:
                return list(file.schema_arrow.names)
        return []


def opened(folder: Folder, name: str) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        return pq.ParquetFile(folder.open(name), pre_buffer=not folder.is_local)
    except (OSError, pa.ArrowInvalid) as error:
        raise RunError(f"{folder.url}/{name} cannot be read; {REMEDY}") from error


def find_steps(root: Folder) -> list[FinishedStep]:
    """Read the manifests below an output folder, in the order in which the steps follow each other.

    Raises:
        UserError: there is none, or a removal of pages was interrupted.
    """
    check_no_removal(root)
    with root.translate_errors():
        names = sorted(
            str(item["name"]).rstrip("/").rpartition("/")[2]
            for item in (root.fs.ls(root.path(), detail=True) if root.fs.exists(root.path()) else [])
            if item["type"] != "file"  # a link to a folder too
        )
    found = []
    for name in names:
        manifest = read_manifest(root / name) if (root / name).size(MANIFEST) else None
        if manifest:
            found.append(FinishedStep(root / name, manifest))
    if not any(step.outputs for step in found):
        raise UserError(f"{root.url} has no finished step with documents; give the output folder of a data flow")
    return _in_order(found)


def _in_order(steps: Sequence[FinishedStep]) -> list[FinishedStep]:
    """Sort steps so that each follows those whose output it read."""
    origins = Origins(step.manifest for step in steps)
    before = {
        step.name: {one.folder for found in origins.of(step.manifest).values() for one in found} - {step.name}
        for step in steps
    }
    remaining = sorted(steps, key=lambda step: (USUAL.index(step.name) if step.name in USUAL else 99, step.name))
    ordered: list[FinishedStep] = []
    while remaining:
        done = {step.name for step in ordered}
        ready = next((step for step in remaining if before[step.name] <= done), remaining[0])
        remaining.remove(ready)
        ordered.append(ready)
    return ordered


def places(folder: Folder, names: Sequence[str], column: str, value: str, hint: str = "") -> Place | None:
    """Find the first row with a value in a column; files are read concurrently, and only this column.

    A file with the name of `hint` is read first: most steps write each shard under the name of the one that they read.
    """

    def look(name: str) -> Place | None:
        with opened(folder, name) as file:
            start = 0
            for group in range(file.num_row_groups):
                index = pc.index(file.read_row_group(group, columns=[column])[column], value).as_py()
                if index >= 0:
                    return Place(name, group, index, start + index)
                start += file.metadata.row_group(group).num_rows
        return None

    hinted = [name for name in names if name.rpartition("/")[2] == hint.rpartition("/")[2]]
    others = [name for name in names if name not in hinted]
    return next((found for part in (hinted, others) for found in _concurrently(look, part) if found), None)


def read_place(folder: Folder, place: Place) -> dict[str, Any]:
    """Read one row, and only its row group."""
    with opened(folder, place.file) as file:
        found: dict[str, Any] = file.read_row_group(place.group).slice(place.row, 1).to_pylist()[0]
        return found


def matches(
    folder: Folder, names: Sequence[str], column: str, test: Callable[[pa.ChunkedArray], Any], columns: list[str]
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield for each file its number and its rows that pass a test of a column, read concurrently in order."""

    def look(name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        with opened(folder, name) as file:
            known = [name for name in columns if name in file.schema_arrow.names]
            for group in range(file.num_row_groups):
                passed = np.flatnonzero(pc.fill_null(test(file.read_row_group(group, [column])[column]), False))
                if len(passed):
                    rows += file.read_row_group(group, known).take(pa.array(passed)).to_pylist()
        return rows

    yield from enumerate(_concurrently(look, names))


def column_of(step: FinishedStep, names: Sequence[str], columns: list[str]) -> pa.Table | None:
    """Read columns of all files; None if there are no files."""

    def look(name: str) -> pa.Table:
        with opened(step.folder, name) as file:
            return file.read(columns=columns)

    tables = list(_concurrently(look, names))
    return pa.concat_tables(tables) if tables else None


def _concurrently(function: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
    """Apply a function to names, a few at a time; what follows is not begun once the caller stops."""
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(names), 2 * THREADS):
            yield from pool.map(function, names[start : start + 2 * THREADS])


def _parquet(records: Sequence[FileRecord]) -> list[str]:
    return [record.name for record in records if record.name.endswith(".parquet")]
