"""Where word n-grams of an evaluation set occur in a text: the kernel of the decontamination.

Words are runs of `\\w`, compared in lower case; places are places of the text as it stands (lower-casing a whole text
can change its length: 'İ' becomes two characters). A text of the evaluation set is indexed by all its n-grams of
`longest` words; one of fewer words by the n-gram of all of them, down to `shortest`; still shorter ones are ignored.

Every n-gram has at least `shortest` words, so its first ones are a key. A compiled loop (`ngram_kernel`) hashes every
window of `shortest` words of a document and passes the few whose hash is a key; those are compared word by word. So
nothing depends on the hash, and a text that shares no such window with the sets is done in 21 ms a megabyte.

In memory: the words of the sets as numbers (4 bytes each), 37 bytes an n-gram, a table of 2^16 to 2^26 bits of a byte
each, and the vocabulary.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

WORD = re.compile(r"\w+")
SPARE = 16  # places in the table of bits for each n-gram: one window in 16 or fewer is looked up for nothing


class Match(NamedTuple):
    """An n-gram of the evaluation set in a text."""

    start: int
    """Number of its first word in the text."""
    length: int
    """Words."""
    gram: int
    """Number of the n-gram in the index."""


class NgramIndex:
    """The different n-grams of a list of texts.

    Attributes:
        ignored: how many texts have fewer than `shortest` words.
    """

    def __init__(self, texts: Sequence[str], longest: int = 13, shortest: int = 8) -> None:
        self.shortest = shortest
        self.ignored = 0
        self._vocabulary: dict[str, int] = {}
        self._keys = np.zeros(0, dtype=np.uint64)
        self._known = np.zeros(2, dtype=bool)
        self._shift = np.uint64(63)  # nothing is known yet
        numbers = [self._numbers(text) for text in texts]
        grams, keys, holders = self._different(texts, numbers, longest)
        self._words = np.concatenate([*numbers, np.zeros(0, dtype=np.uint32)])
        self._starts, self._lengths = grams[:, 0], grams[:, 1].astype(np.uint8)
        order = np.argsort(holders[:, 0], kind="stable")
        self._holders = holders[order, 1].astype(np.int32)
        self._ends = np.cumsum(np.bincount(holders[:, 0], minlength=len(grams)))
        self._grams = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys = keys[self._grams]
        bits = min(max(16, (SPARE * len(keys)).bit_length()), 26)
        self._shift = np.uint64(64 - bits)
        self._known = np.zeros(1 << bits, dtype=bool)
        self._known[self._keys >> self._shift] = True

    def _numbers(self, text: str) -> npt.NDArray[np.uint32]:
        """Words of an evaluation text as numbers from 1; new words are added."""
        known = self._vocabulary
        return np.array([known.setdefault(word, len(known) + 1) for word in words_of(text)], dtype=np.uint32)

    def _different(
        self, texts: Sequence[str], numbers: Sequence[npt.NDArray[np.uint32]], longest: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Start among all words and length of each different n-gram [n-grams, 2], its key, and (n-gram, text) pairs."""
        grams: list[tuple[int, int]] = []
        keys: list[np.uint64] = []
        holders: dict[tuple[int, int], None] = {}
        seen: dict[bytes, int] = {}
        first = 0
        for text_number, (text, words) in enumerate(zip(texts, numbers, strict=True)):
            length = min(len(words), longest)
            if len(words) >= self.shortest:
                hashes, _ = self._windows(text)
                for start in range(len(words) - length + 1):
                    gram = seen.setdefault(words[start : start + length].tobytes(), len(grams))
                    if gram == len(grams):
                        grams.append((first + start, length))
                        keys.append(hashes[start])
                    holders[gram, text_number] = None
            else:
                self.ignored += 1
            first += len(words)
        pairs = np.array(list(holders), dtype=np.int64).reshape(-1, 2)
        return np.array(grams, dtype=np.int64).reshape(-1, 2), np.array(keys, dtype=np.uint64), pairs

    def sources(self, gram: int) -> list[int]:
        """Numbers of the texts that hold an n-gram, in order."""
        return self._holders[self._ends[gram - 1] if gram else 0 : self._ends[gram]].tolist()

    def matches(self, text: str) -> list[Match]:
        """Every n-gram of the index in a text, by start, then length."""
        hashes, places = self._windows(text)
        if not len(places):
            return []
        words = words_of(text)
        numbers = np.fromiter(map(self._vocabulary.get, words, repeat(0)), dtype=np.uint32, count=len(words))
        return sorted(self._compared(numbers, hashes[places], places))

    def _windows(self, text: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Hash of every window of `shortest` words, and the numbers of those windows whose hash is a key."""
        from tasks.decontaminate.kernel import find_windows, letters

        data = np.frombuffer(text.encode(errors="surrogatepass"), dtype=np.uint8)
        hashes, places = np.empty(len(data) // 2 + 1, dtype=np.uint64), np.empty(len(data) // 2 + 1, dtype=np.int64)
        windows, found = find_windows(
            data, letters(), self.shortest, self._keys, self._known, self._shift, hashes, places
        )
        return hashes[:windows], places[:found]

    def _compared(
        self, numbers: npt.NDArray[np.uint32], hashes: npt.NDArray[np.uint64], places: npt.NDArray[np.int64]
    ) -> Iterator[Match]:
        first = np.searchsorted(self._keys, hashes, side="left")
        last = np.searchsorted(self._keys, hashes, side="right")
        for place, low, high in zip(places.tolist(), first.tolist(), last.tolist(), strict=True):
            for gram in self._grams[low:high].tolist():
                start, length = int(self._starts[gram]), int(self._lengths[gram])
                if np.array_equal(self._words[start : start + length], numbers[place : place + length]):
                    yield Match(place, length, gram)


def words_of(text: str) -> list[str]:
    """Words of a text in lower case, in order; as many as `word_spans` gives."""
    if text.isascii():  # then lower-casing keeps every place, and once is faster than per word
        return WORD.findall(text.lower())
    return [word.lower() for word in WORD.findall(text)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each word in the text."""
    return [found.span() for found in WORD.finditer(text)]
