"""Numba helpers that several steps share: the compile decorator, UTF-8 decoding, a 64-bit hash finalizer.

Compiled code is cached on disk beside its module (or in NUMBA_CACHE_DIR), by the modification time of that module only:
after a change here, touch the modules that call it. Importing numba takes a third of a second, so this module is
imported only inside the functions that need a kernel.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
FIRST, SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)  # MurmurHash3's fmix64
U33 = np.uint64(33)


def compiled(function: F) -> F:
    """Compile a function at its first call, with a cache on disk; without a writable folder, in memory only."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # "cannot cache function: no locator available"
        return cast(F, numba.njit(nogil=True)(function))


@compiled
def fmix64(number: Any) -> Any:
    """MurmurHash3's 64-bit finalizer: every input bit affects every output bit."""
    number ^= number >> U33
    number *= FIRST
    number ^= number >> U33
    number *= SECOND
    return number ^ (number >> U33)


@compiled
def decode(data: Any, at: Any) -> Any:
    """Decode the code point at an index of valid UTF-8; return it and its length in bytes."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | np.int64(data[at + 1]) & 0x3F, 2
    low = (np.int64(data[at + 1]) & 0x3F) << 6 | np.int64(data[at + 2]) & 0x3F
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | low, 3
    return (lead & 0x07) << 18 | low << 6 | np.int64(data[at + 3]) & 0x3F, 4
