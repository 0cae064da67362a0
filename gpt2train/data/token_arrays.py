"""Memory-mapped arrays: several read as one, and reads of many places that wait for the disk together."""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np


class ConcatenatedArrays:
    """Lazy concatenation of arrays; data is copied only when it is read."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Read a slice of step 1, or an integer array of indices of any shape."""
        if isinstance(indices, slice):
            start, stop, _ = indices.indices(len(self))
            found = [part for part in self._views(start, stop) if len(part)]
            return found[0] if len(found) == 1 else np.concatenate([np.empty(0, self.dtype), *found])
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise IndexError(f"valid indices are 0 … {len(self) - 1}, got {int(wanted.min())} … {int(wanted.max())}")
        result = np.empty(wanted.shape, dtype=self.dtype)
        for part, mask, inner in self.by_part(wanted):
            result[mask] = part[inner]
        return result

    def by_part(self, places: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield each array with items at some places, the mask of these places, and the places in the array."""
        numbers = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(numbers).tolist():
            part, mask = self._parts[number], numbers == number
            yield part, mask, places[mask] - (int(self._ends[number]) - len(part))

    def part(self, start: int, stop: int) -> "ConcatenatedArrays":
        """View of the items from `start` to `stop`; unlike a slice, it copies nothing."""
        return ConcatenatedArrays(self._views(start, stop))

    def _views(self, start: int, stop: int) -> list[np.ndarray]:
        firsts = (end - len(part) for part, end in zip(self._parts, self._ends.tolist(), strict=True))
        pairs = zip(self._parts, firsts, strict=True)
        return [part[max(start - first, 0) : max(stop - first, 0)] for part, first in pairs]


def read_ahead(array: np.ndarray | ConcatenatedArrays, places: np.ndarray, items: int) -> None:
    """Ask the system to begin to read `array[place : place + items]` of each place; returns at once.

    A page fault waits for one read of the disk, a millisecond or more on a network disk, and holds Python's lock
    meanwhile. Where the system has no madvise, and for an array in memory, nothing happens.

    Args:
        array: contiguous and one-dimensional.
        places: int64, each inside the array.
        items: length of each read; what lies beyond the array, or its part, is left out.
    """
    if isinstance(array, ConcatenatedArrays):
        for part, _, inner in array.by_part(places):
            read_ahead(part, inner, items)
        return
    if _madvise is None or not len(array) or not len(places):
        return
    address, size = array.ctypes.data, array.itemsize
    first = (address + places * size) // mmap.PAGESIZE
    last = (address + np.minimum(places + items, len(array)) * size - 1) // mmap.PAGESIZE
    for page in np.unique(np.concatenate([first, last])).tolist():
        _madvise(page * mmap.PAGESIZE, mmap.PAGESIZE, mmap.MADV_WILLNEED)


def _system_call() -> Callable[[int, int, int], int] | None:
    """Return madvise of the C library, which the standard library has for its own maps alone."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return None
    call = ctypes.CDLL(None).madvise
    call.argtypes, call.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return call


_madvise = _system_call()
