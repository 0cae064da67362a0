"""Reads of many places of a memory-mapped file that wait for the disk together, and not one after the other."""

import ctypes
import mmap
from collections.abc import Callable

import numpy as np


def read_ahead(array: np.ndarray, places: np.ndarray, items: int) -> None:
    """Ask the system to begin to read `array[place : place + items]` of each place; returns at once.

    A page fault waits for one read of the disk, a millisecond or more on a network disk, and holds Python's lock
    meanwhile. Where the system has no madvise, and for an array in memory, nothing happens.

    Args:
        array: contiguous and one-dimensional.
        places: int64, each inside the array.
        items: length of each read; what lies beyond the array is left out.
    """
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
