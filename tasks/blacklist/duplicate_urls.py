"""Duplicate URLs over any number of lists, in bounded memory; exact up to collisions of 128-bit keys.

The key of each URL that passed the rules is written with its position, partitioned into cells by its first bits. Equal
keys are in the same cell, so that each cell is processed independently. The result is the positions of all duplicates
except the first. 10^9 URLs give 24 GB of keys, and 100 MB per cell.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome

Numbers = npt.NDArray[np.uint64]

SEGMENT = 2**18  # keys that are sorted in memory at a time; about 25 MB
CELL_BYTES = 64 * 2**20  # of the lists per cell, which gives about 10^6 keys
MAX_CELLS = 256
LIST_SHIFT = np.uint64(40)  # position = number of the list << 40 | number of the row


def cells_of(list_bytes: int) -> int:
    """Return the number of cells for lists of this size, a power of two; it affects only the speed."""
    return min(MAX_CELLS, 1 << max(0, (list_bytes // CELL_BYTES).bit_length()))


class KeyWriter:
    """Writer of the keys of one list; use as a context manager.

    The file has segments of rows (first half of the key, second half, row number), each sorted by cell.

    Attributes:
        index: Start of each cell, one row per segment; complete after the context ends.
    """

    def __init__(self, path: Path, cells: int) -> None:
        self.cells = cells
        self.index: list[list[int]] = []
        self._file: IO[bytes] = path.open("wb")
        self._keys: list[bytes] = []
        self._rows: list[int] = []
        self._written = 0

    def __enter__(self) -> "KeyWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def add(self, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Add keys with their row numbers."""
        self._keys += keys
        self._rows += rows
        if len(self._keys) >= SEGMENT:
            self._flush()

    def _flush(self) -> None:
        if not self._keys:
            return
        halves = np.frombuffer(b"".join(self._keys), dtype="<u8").reshape(-1, 2)
        entries = np.column_stack([halves, np.array(self._rows, dtype=np.uint64)])
        cell = cell_numbers(halves[:, 0], self.cells)
        order = np.argsort(cell, kind="stable")
        starts = np.searchsorted(cell[order], np.arange(self.cells + 1)) + self._written
        self.index.append([int(start) for start in starts])
        self._file.write(entries[order].astype("<u8").tobytes())
        self._written += len(entries)
        self._keys.clear()
        self._rows.clear()


def cell_numbers(first: Numbers, cells: int) -> npt.NDArray[np.int64]:
    """Return the cell of each key, from the first bits of its first half."""
    bits = cells.bit_length() - 1
    return (first >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(first), np.int64)


def write_array(folder: Folder, name: str, values: Any) -> Outcome:
    """Write an array as one `.npy` file."""
    with folder.writing(name) as draft, draft.open("wb") as file:
        np.save(file, values, allow_pickle=False)
    return Outcome(outputs=(folder.record(name, rows=len(values)),))


def read_array(folder: Folder, name: str) -> npt.NDArray[Any]:
    """Read an array; memory-mapped if the folder is on local disk."""
    if folder.is_local:
        mapped: npt.NDArray[Any] = np.load(folder.path(name), mmap_mode="r", allow_pickle=False)
        return mapped
    with folder.open(name) as file:
        loaded: npt.NDArray[Any] = np.load(file, allow_pickle=False)
        return loaded


def find_duplicates(folder: Folder, name: str, cell: int, lists: Sequence[tuple[str, str]]) -> Outcome:
    """Write the sorted positions of the duplicates in a cell as `work/<name>.npy`; a list has a key file and index."""
    entries = [_cell_of_list(folder, keys, index, cell, number) for number, (keys, index) in enumerate(lists)]
    return write_array(folder, f"work/{name}.npy", duplicate_positions(np.concatenate(entries)))


def duplicate_positions(entries: Numbers) -> Numbers:
    """Return the sorted positions of the rows whose key occurs at an earlier position.

    `entries` is uint64 [rows, 3]: first and second half of the key, position.
    """
    first, second, position = entries.T
    order = np.lexsort((position, second, first))
    first, second, position = first[order], second[order], position[order]
    same = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
    return np.sort(position[1:][same])


def _cell_of_list(folder: Folder, keys: str, index: str, cell: int, number: int) -> Numbers:
    segments = [np.zeros((0, 3), np.uint64)]
    with folder.open(keys) as file:
        for starts in read_array(folder, index):
            begin, end = int(starts[cell]), int(starts[cell + 1])
            file.seek(begin * 24)
            segments.append(np.frombuffer(file.read((end - begin) * 24), dtype="<u8").reshape(-1, 3))
    entries = np.concatenate(segments).astype(np.uint64)
    entries[:, 2] |= np.uint64(number) << LIST_SHIFT
    return entries


def rows_between(repeated: Sequence[Numbers], number: int, begin: int, end: int) -> Iterator[int]:
    """Yield the duplicate rows of list `number` from `begin` up to, not including, `end`."""
    base = np.uint64(number) << LIST_SHIFT
    for positions in repeated:
        at = np.searchsorted(positions, [base | np.uint64(begin), base | np.uint64(end)])
        yield from (int(position ^ base) for position in positions[at[0] : at[1]])
