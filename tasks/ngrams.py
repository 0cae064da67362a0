"""Where word n-grams of an evaluation set occur in a text: the kernel of the decontamination.

Words are runs of `\\w`, compared in lower case; places are places of the text as it stands (lower-casing a whole text
can change its length: 'İ' becomes two characters). A text of the evaluation set is indexed by all its n-grams of
`longest` words; one of fewer words by the n-gram of all of them, down to `shortest`; still shorter ones are ignored.

A document's words become numbers of the evaluation vocabulary (0: not in it), every window gets a rolling hash by one
NumPy expression, and the few windows whose hash is known are compared word by word. So nothing depends on the hash.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

WORD = re.compile(r"\w+")
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
MIXER = np.uint64(0xBF58476D1CE4E5B9)  # of splitmix64


class Match(NamedTuple):
    """An n-gram of the evaluation set in a text."""

    start: int
    """Number of its first word in the text."""
    length: int
    """Words."""
    gram: int
    """Number of the n-gram in the index."""


class NgramIndex:
    """N-grams of a list of texts.

    Attributes:
        sources: for each n-gram, the numbers of the texts that hold it.
        ignored: how many texts have fewer than `shortest` words.
    """

    def __init__(self, texts: Sequence[str], longest: int = 13, shortest: int = 8) -> None:
        self.sources: list[tuple[int, ...]] = []
        self.ignored = 0
        self._vocabulary: dict[str, int] = {}
        self._tables: dict[int, _Table] = {}
        found: dict[int, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, text in enumerate(texts):
            words = [self._vocabulary.setdefault(word, len(self._vocabulary) + 1) for word in words_of(text)]
            if len(words) < shortest:
                self.ignored += 1
                continue
            length = min(len(words), longest)
            for start in range(len(words) - length + 1):
                holders = found[length][tuple(words[start : start + length])]
                if not holders or holders[-1] != number:
                    holders.append(number)
        for length in sorted(found):
            first = len(self.sources)
            self.sources.extend(tuple(holders) for holders in found[length].values())
            self._tables[length] = _Table(np.array(list(found[length]), dtype=np.uint64), first)

    def matches(self, text: str) -> list[Match]:
        """Every n-gram of the index in a text, by start, then length."""
        if not self._tables:
            return []
        words = words_of(text)
        numbers = np.fromiter(map(self._vocabulary.get, words, repeat(0)), dtype=np.uint64, count=len(words))
        return sorted(match for table in self._tables.values() for match in table.matches(numbers))


class _Table:
    """The n-grams of one length, sorted by hash."""

    def __init__(self, grams: npt.NDArray[np.uint64], first: int) -> None:
        self.length = grams.shape[1]
        hashes = _window_hashes(grams.ravel(), self.length)[:: self.length]
        order = np.argsort(hashes, kind="stable")
        self.hashes, self.grams, self.numbers = hashes[order], grams[order], order + first

    def matches(self, numbers: npt.NDArray[np.uint64]) -> Iterator[Match]:
        if len(numbers) < self.length:
            return
        hashes = _window_hashes(numbers, self.length)
        places = np.searchsorted(self.hashes, hashes)
        known = self.hashes[np.minimum(places, len(self.hashes) - 1)] == hashes
        for start in np.flatnonzero(known).tolist():
            window, place = numbers[start : start + self.length], int(places[start])
            while place < len(self.hashes) and self.hashes[place] == hashes[start]:
                if np.array_equal(self.grams[place], window):
                    yield Match(start, self.length, int(self.numbers[place]))
                place += 1


def words_of(text: str) -> list[str]:
    """Words of a text in lower case, in order; as many as `word_spans` gives."""
    if text.isascii():  # then lower-casing keeps every place, and once is faster than per word
        return WORD.findall(text.lower())
    return [word.lower() for word in WORD.findall(text)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each word in the text."""
    return [found.span() for found in WORD.finditer(text)]


def _window_hashes(numbers: npt.NDArray[np.uint64], length: int) -> npt.NDArray[np.uint64]:
    """A hash of every window of `length` numbers; arithmetic modulo 2^64."""
    mixed = numbers * MIXER
    mixed ^= mixed >> np.uint64(29)
    count = len(numbers) - length + 1
    hashes = mixed[:count].copy()
    for offset in range(1, length):
        hashes *= MULTIPLIER
        hashes += mixed[offset : offset + count]
    return hashes
