"""The loop of the decontamination, compiled by numba: words of a text hashed, windows of them looked up.

Words are runs of `\\w`; two words that are equal in lower case have one hash. Arithmetic is modulo 2^64. Only functions
that need the kernel import this module: importing numba takes a third of a second.
"""

import functools
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.compiled import compiled, decode, fmix64

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 / golden ratio
CODE_POINTS = 0x110000


@functools.cache
def letters() -> npt.NDArray[np.uint32]:
    """[code points] 0 for what is no part of a word, else what is hashed: 1 + its first letter in lower case.

    A word in lower case tells nothing more than that: only İ becomes two letters, of which the second is in no word,
    and only Σ depends on what is beside it, so that σ and ς are taken for one.
    """
    table = np.zeros(CODE_POINTS, dtype=np.uint32)
    codes = np.concatenate([np.arange(0xD800, dtype="<u4"), np.arange(0xE000, CODE_POINTS, dtype="<u4")])
    words = "".join(re.findall(r"\w+", codes.tobytes().decode("utf-32-le")))
    lower = words.replace("İ", "i").replace("Σ", "σ").lower().replace("ς", "σ")
    table[np.frombuffer(words.encode("utf-32-le"), "<u4")] = np.frombuffer(lower.encode("utf-32-le"), "<u4") + 1
    return table


@compiled
def find_windows(
    data: Any, letters: Any, length: Any, keys: Any, known: Any, shift: Any, hashes: Any, places: Any
) -> tuple[int, int]:
    """Hash every window of `length` words, and find those whose hash is a key.

    Args:
        data: uint8, a text in UTF-8.
        letters: of the function of that name.
        length: words of a window.
        keys: uint64, sorted.
        known: bool, at `key >> shift` for each key.
        shift: uint64.
        hashes: uint64, takes the hash of each window; room for half as many as there are bytes, and one.
        places: int64, takes the numbers of the windows found; as much room.

    Returns:
        how many windows there are, and how many were found.
    """
    recent = np.zeros(length, dtype=np.uint64)
    power = np.uint64(1)
    for _ in range(length):
        power *= MULTIPLIER
    words, windows, found, place = 0, 0, 0, 0
    word, window = np.uint64(0), np.uint64(0)
    while place <= len(data):
        letter = np.uint32(0)
        width = 1
        if place < len(data):
            code, width = decode(data, place)
            letter = letters[code]
        place += width
        if letter:
            word = (word ^ np.uint64(letter)) * MULTIPLIER
            word ^= word >> np.uint64(29)
        elif word:
            slot = words % length
            word = fmix64(word)
            window = window * MULTIPLIER + word - recent[slot] * power
            recent[slot] = word
            words += 1
            word = np.uint64(0)
            if words >= length:
                hashes[windows] = window
                if known[window >> shift]:
                    low, high = 0, len(keys)
                    while low < high:
                        middle = (low + high) // 2
                        if keys[middle] < window:
                            low = middle + 1
                        else:
                            high = middle
                    if low < len(keys) and keys[low] == window:
                        places[found] = windows
                        found += 1
                windows += 1
    return windows, found
