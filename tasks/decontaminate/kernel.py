"""Loops of the decontamination, compiled by numba: hash the words of a text, look up windows of words.

`folding` defines the characters of words and their folded forms. Arithmetic is modulo 2^64. Only functions that need
the kernel import this module: importing numba takes a third of a second.
"""

from typing import Any

import numpy as np

from tasks.core.numba_utils import compiled, decode, fmix64
from tasks.decontaminate.folding import COUNT_BITS, IGNORED, LETTER, SEVERAL, SINGLE

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 / golden ratio
U29 = np.uint64(29)
COUNT = (1 << COUNT_BITS) - 1
MAX_REFERENCE = 12  # bytes between the brackets of a reference: [3], [12, 14], [a]


@compiled
def add_letter(word: Any, letter: Any) -> Any:
    """Hash of a word extended by one letter."""
    word = (word ^ np.uint64(letter)) * MULTIPLIER
    return word ^ (word >> U29)


@compiled
def skip_line_end(data: Any, offset: Any) -> int:
    """Offset after one line end and the blanks around it; -1 if there is none, or two."""
    found = False
    while offset < len(data):
        byte = data[offset]
        if byte == 10 and not found:
            found = True
        elif byte not in (9, 13, 32):
            break
        offset += 1
    return offset if found and offset < len(data) and data[offset] != 10 else -1


@compiled
def skip_reference(data: Any, offset: Any) -> int:
    """Offset after a reference like `3]`, `12, 14]` or `a]` that starts at `offset`; -1 if there is none."""
    first = data[offset] if offset < len(data) else 0
    if 97 <= first <= 122:
        return offset + 2 if offset + 1 < len(data) and data[offset + 1] == 93 else -1
    if not 48 <= first <= 57:
        return -1
    for at in range(offset, min(offset + MAX_REFERENCE, len(data))):
        byte = data[at]
        if byte == 93:
            return at + 1
        if not (48 <= byte <= 57 or byte in (32, 44, 45)):
            return -1
    return -1


@compiled
def split_words(data: Any, kinds: Any, forms: Any, words: Any, starts: Any, ends: Any) -> int:
    """Hash the words of a text.

    A word that is hyphenated at the end of a line is one word; a reference in brackets is not a word.

    Args:
        data: uint8 [bytes], a text in UTF-8.
        kinds: uint32 [code points], of `folding.letters`.
        forms: uint32, of `folding.letters`.
        words: uint64 [bytes // 2 + 1], output: hash of each word.
        starts: int64 [bytes // 2 + 1], output: start of each word in characters; [0]: no output.
        ends: int64 [bytes // 2 + 1], output: end of each word in characters; [0]: no output.

    Returns:
        Number of words.
    """
    with_spans = len(starts) > 0
    count, offset, character = 0, 0, 0
    inside, begin, end = False, 0, 0
    word = np.uint64(0)
    while offset <= len(data):
        kind, code, width = np.uint32(0), np.int64(0), 1
        if offset < len(data):
            code, width = decode(data, offset)
            kind = kinds[code]
        if kind >= LETTER and not (kind & SINGLE and not kind & SEVERAL):
            if not inside:
                inside, begin, word = True, character, np.uint64(0)
            if kind & SEVERAL:
                first = (kind & ~np.uint32(SEVERAL)) >> COUNT_BITS
                for at in range(first, first + (kind & COUNT)):
                    word = add_letter(word, forms[at])
            else:
                word = add_letter(word, kind)
            offset += width
            character += 1
            end = character
            continue
        if inside and (code == 0x2D or code == 0xAD or code == 0x2010):
            after = skip_line_end(data, offset + width)
            if after > 0:
                character += 1 + after - offset - width
                offset = after
                continue
        if kind == IGNORED:
            offset += width
            character += 1
            continue
        if inside:
            words[count] = fmix64(word)
            if with_spans:
                starts[count], ends[count] = begin, end
            count += 1
            inside = False
        if kind:  # a letter that is a word
            words[count] = fmix64(add_letter(np.uint64(0), kind))
            if with_spans:
                starts[count], ends[count] = character, character + 1
            count += 1
        elif code == 0x5B:
            after = skip_reference(data, offset + 1)
            if after > 0:
                character += after - offset
                offset = after
                continue
        offset += width
        character += 1
    return count


@compiled
def find_windows(
    words: Any, length: Any, keys: Any, known: Any, shift: Any, hashes: Any, found_windows: Any
) -> tuple[int, int]:
    """Hash every window of `length` words, and find the windows whose hash is a key.

    Args:
        words: uint64 [words], hash of each word.
        length: number of words in a window.
        keys: uint64 [keys], sorted.
        known: bool, True at `key >> shift` for each key.
        shift: uint64, shift of a hash to its index in `known`.
        hashes: uint64 [words], output: hash of each window.
        found_windows: int64 [words], output: numbers of the windows found.

    Returns:
        Number of windows, and number of windows found.
    """
    power = np.uint64(1)
    for _ in range(length):
        power *= MULTIPLIER
    windows, found = 0, 0
    window = np.uint64(0)
    for count in range(len(words)):
        window = window * MULTIPLIER + words[count]
        if count >= length:
            window -= words[count - length] * power
        if count + 1 < length:
            continue
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
                found_windows[found] = windows
                found += 1
        windows += 1
    return windows, found
