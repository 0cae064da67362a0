"""Normalisation of texts for comparison, and its tables for the kernels: kind and folded form of each code point.

NFKC maps single code points unless a code point composes with, or is reordered past, the one before it. The table has
the folded forms of the code points that never do so (Latin, Greek, Cyrillic, punctuation, symbols, most emoji:
`KNOWN`); a text with any other code point (a combining accent, Hangul, CJK) is normalised by Python's `unicodedata`.
"""

import functools
import re
import unicodedata
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt2train.data.text_units import BLOCKS, spaced_word

WORD, SPACE, KNOWN = 1, 2, 4  # flags: part of a word; white space of str.split; the table has its folded form
SINGLE = 8  # flag: letter of a script without spaces between words, a word of its own
INVISIBLE = 16  # flag: `normalise` drops it
CODE_POINTS = 0x110000
TABLED = (range(0x3100), range(0xFE00, 0xFF00), range(0x1F000, 0x1FB00))  # FE0F follows emoji, FEFF begins files
SIGNS = 0xD800  # signs within words that are no `\w` are below
SCANNED = 0x20000  # no code point from here on decomposes into two
JAMO = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))  # compose algorithmically with the code point before them

# Ignored in addition to category Cf (soft hyphens, zero-width spaces, byte order marks): default ignorable code points
# of Unicode such as variation selectors and Hangul fillers.
IGNORABLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"


@functools.cache
def invisible() -> re.Pattern[str]:
    """Pattern of invisible characters, by the Unicode version of this Python: 0.1 s once per process."""
    formats = "".join(chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf")
    return re.compile(f"[{IGNORABLE}{formats}]+")


def normalise(text: str) -> str:
    """NFKC and case folding without invisible characters: texts that differ only in these or in case become equal."""
    return normalise_visible(invisible().sub("", text))


def normalise_visible(text: str) -> str:
    """The same for a text without invisible characters: the search for these takes half of the time."""
    return unicodedata.normalize("NFKC", text).casefold()


class Tables(NamedTuple):
    """Unicode tables of the kernels."""

    kinds: npt.NDArray[np.uint8]  # [code points] flags
    starts: npt.NDArray[np.int32]
    """[end of the table + 1] start of the folded form of each code point in `forms`; the next start is its end."""
    forms: npt.NDArray[np.uint8]  # concatenated folded forms in UTF-8, with white space as plain spaces


@functools.cache
def build_tables() -> Tables:
    """Build the tables for the Unicode version of this Python: 30 ms once per process, 1.7 MB."""
    kinds = np.zeros(CODE_POINTS, dtype=np.uint8)
    letters = "".join(map(chr, chain(range(0xD800), range(0xE000, CODE_POINTS))))
    for found in chain(re.finditer(r"\w+", letters), re.finditer(spaced_word(), letters[:SIGNS])):
        kinds[ord(found[0][0]) : ord(found[0][-1]) + 1] |= WORD
    kinds[0xD800:0xE000] = 0
    for begin, end in BLOCKS:
        kinds[begin : end + 1] += SINGLE * (kinds[begin : end + 1] == WORD).astype(np.uint8)
    for found in re.finditer(r"\s", letters[:SCANNED]):
        kinds[ord(found[0])] |= SPACE
    for found in invisible().finditer(letters):
        kinds[list(map(ord, found[0]))] |= INVISIBLE
    composing = _composing()
    lengths = np.zeros(TABLED[-1].stop + 1, dtype=np.int32)
    forms = bytearray()
    for code in chain(*TABLED):
        letter = chr(code)
        first = unicodedata.normalize("NFKD", letter)[0]
        if unicodedata.combining(first) or first in composing:
            continue
        kinds[code] |= KNOWN
        form = "".join(" " if part.isspace() else part for part in normalise(letter)).encode()
        forms += form
        lengths[code + 1] = len(form)
    return Tables(kinds, np.cumsum(lengths, dtype=np.int32), np.frombuffer(bytes(forms), dtype=np.uint8))


def _composing() -> set[str]:
    """Code points that can compose with the code point before them."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(SCANNED))
    return {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and "<" not in pair[0]} | set(map(chr, JAMO))
