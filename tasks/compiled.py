"""What the compiled loops of several steps share: numba's decorator, UTF-8, a mixing of bits.

Compiled code is cached on disk beside its module (or where NUMBA_CACHE_DIR says), by the date of that module alone:
who changes a function here touches the modules that call it. Only functions that need a kernel import this module or
those: importing numba takes a third of a second.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
FIRST, SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)  # MurmurHash3's fmix64
U33 = np.uint64(33)


def compiled(function: F) -> F:
    """Compile at the first call and keep the result on disk; in memory alone where no folder can be written."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # "cannot cache function: no locator available"
        return cast(F, numba.njit(nogil=True)(function))


@compiled
def fmix64(number: Any) -> Any:
    """MurmurHash3's 64-bit finaliser: every bit of the input reaches every bit of the output."""
    number ^= number >> U33
    number *= FIRST
    number ^= number >> U33
    number *= SECOND
    return number ^ (number >> U33)


@compiled
def decode(data: Any, place: Any) -> Any:
    """Code point that begins at a place of valid UTF-8, and how many bytes it has."""
    lead = np.int64(data[place])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | np.int64(data[place + 1]) & 0x3F, 2
    low = (np.int64(data[place + 1]) & 0x3F) << 6 | np.int64(data[place + 2]) & 0x3F
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | low, 3
    return (lead & 0x07) << 18 | low << 6 | np.int64(data[place + 3]) & 0x3F, 4
