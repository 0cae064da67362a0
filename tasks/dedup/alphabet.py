"""Tables of Unicode for the kernels: what a code point is, and what NFKC and casefold make of it.

NFKC looks at one code point at a time wherever no code point composes with, or is reordered past, the one before. Of
the code points that this holds for (Latin, Greek, Cyrillic, punctuation, symbols, most emoji: `KNOWN`) the table says
what becomes of each; a text that has another one (a combining accent, Hangul, CJK) goes through Python's own
`unicodedata`.
"""

import functools
import re
import unicodedata
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

WORD, SPACE, KNOWN = 1, 2, 4  # bits: `\w`; white space of str.split; the table holds its folded form
CODE_POINTS = 0x110000
TABLED = (range(0x3100), range(0x1F000, 0x1FB00))
SCANNED = 0x20000  # no code point from here on decomposes into two
JAMO = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))  # compose with what is before them by arithmetic


class Alphabet(NamedTuple):
    """The tables, as the kernels take them."""

    kinds: npt.NDArray[np.uint8]
    """[code points] bits."""
    starts: npt.NDArray[np.int32]
    """[end of the table + 1] where the folded form of each begins in `forms`; it ends where the next one begins."""
    forms: npt.NDArray[np.uint8]
    """Folded forms in UTF-8, all white space a plain space."""


@functools.cache
def alphabet() -> Alphabet:
    """The tables of this Python's Unicode version: 30 ms once a process, 1.7 MB."""
    kinds = np.zeros(CODE_POINTS, dtype=np.uint8)
    letters = "".join(map(chr, chain(range(0xD800), range(0xE000, CODE_POINTS))))
    for found in re.finditer(r"\w+", letters):
        kinds[ord(found[0][0]) : ord(found[0][-1]) + 1] |= WORD
    kinds[0xD800:0xE000] = 0
    for found in re.finditer(r"\s", letters[:SCANNED]):
        kinds[ord(found[0])] |= SPACE
    composing = _composing()
    lengths = np.zeros(TABLED[-1].stop + 1, dtype=np.int32)
    forms = bytearray()
    for code in chain(*TABLED):
        letter = chr(code)
        first = unicodedata.normalize("NFKD", letter)[0]
        if unicodedata.combining(first) or first in composing:
            continue
        kinds[code] |= KNOWN
        folded = unicodedata.normalize("NFKC", letter).casefold()
        form = "".join(" " if part.isspace() else part for part in folded).encode()
        forms += form
        lengths[code + 1] = len(form)
    return Alphabet(kinds, np.cumsum(lengths, dtype=np.int32), np.frombuffer(bytes(forms), dtype=np.uint8))


def _composing() -> set[str]:
    """What can become one with the code point before it."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(SCANNED))
    return {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and "<" not in pair[0]} | set(map(chr, JAMO))
