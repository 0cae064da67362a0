"""Index of the word n-grams of evaluation texts, to find their occurrences in a text.

Words are compared in their folded form (`folding`); positions refer to the original text (folding a whole text can
change its length: 'İ' becomes two characters). A text of an evaluation set is indexed by all its n-grams of `ngram`
words; a shorter text of at least `min_ngram` words is one n-gram; still shorter texts are ignored.

Every n-gram has at least `min_ngram` words, and its first `min_ngram` words are its key. A compiled loop (`kernel`)
hashes every window of `min_ngram` words of a document and returns the few windows whose hash is a key; those are
compared word by word. The result therefore does not depend on the hash. A text without such a window takes 21 ms per
megabyte.

Memory: the words of the sets as numbers (4 bytes each), 37 bytes per n-gram, a table of 2^16 to 2^26 booleans of one
byte each, and the vocabulary.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.decontaminate.folding import folded, letters

SLOTS_PER_NGRAM = 16  # in the table of booleans: at most one window in 16 is looked up in vain


class Match(NamedTuple):
    """Occurrence of an n-gram of the index in a text."""

    start: int  # index of its first word in the text
    length: int  # number of words
    gram: int  # number of the n-gram in the index


class NgramIndex:
    """Index of the distinct n-grams of a list of texts.

    Args:
        texts: texts of the evaluation sets.
        ngram: words per n-gram.
        min_ngram: minimum words of an n-gram of a shorter text.

    Attributes:
        ignored: number of texts with fewer than `min_ngram` words.
    """

    def __init__(self, texts: Sequence[str], ngram: int = 13, min_ngram: int = 8) -> None:
        self.min_ngram = min_ngram
        self.ignored = 0
        self._vocabulary: dict[str, int] = {}
        self._keys = np.zeros(0, dtype=np.uint64)
        self._known = np.zeros(2, dtype=bool)
        self._shift = np.uint64(63)  # the table is empty
        numbers = [self._numbers(text) for text in texts]
        self._words = np.concatenate([*numbers, np.zeros(0, dtype=np.uint32)])
        sizes = np.array([len(words) for words in numbers], dtype=np.int64)
        self.ignored = int((sizes < min_ngram).sum())
        # All n-grams: their text, their first word within it and among all words, and their number of words.
        lengths = np.minimum(sizes, ngram)
        counts = np.where(sizes < min_ngram, 0, sizes - lengths + 1)
        text = np.repeat(np.arange(len(texts)), counts)
        offset = np.arange(len(text)) - (np.cumsum(counts) - counts)[text]
        start, length = (np.cumsum(sizes) - sizes)[text] + offset, lengths[text]
        first, gram = _distinct(self._words, start, length, ngram)
        self._starts, self._lengths = start[first], length[first].astype(np.uint8)
        holders = np.unique(gram * len(texts) + text)  # pairs of an n-gram and a text
        self._holders = (holders % max(len(texts), 1)).astype(np.int32)
        self._ends = np.cumsum(np.bincount(holders // max(len(texts), 1), minlength=len(first)))
        hashes = [self._windows(text)[0] for text in texts]
        before = np.cumsum([0, *map(len, hashes)])
        keys = np.concatenate([*hashes, np.zeros(0, dtype=np.uint64)])[(before[text] + offset)[first]]
        self._grams = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys = keys[self._grams]
        bits = min(max(16, (SLOTS_PER_NGRAM * len(keys)).bit_length()), 26)
        self._shift = np.uint64(64 - bits)
        self._known = np.zeros(1 << bits, dtype=bool)
        self._known[self._keys >> self._shift] = True

    def _numbers(self, text: str) -> npt.NDArray[np.uint32]:
        """Words of an evaluation text as numbers from 1; new words are added to the vocabulary."""
        known = self._vocabulary
        return np.array([known.setdefault(word, len(known) + 1) for word in words_of(text)], dtype=np.uint32)

    @property
    def size(self) -> int:
        """Number of distinct n-grams."""
        return len(self._lengths)

    def sources(self, gram: int) -> list[int]:
        """Numbers of the texts that contain an n-gram, in order."""
        return self._holders[self._ends[gram - 1] if gram else 0 : self._ends[gram]].tolist()

    def matches(self, text: str) -> list[Match]:
        """All occurrences of n-grams of the index in a text, by start, then length."""
        hashes, windows_found = self._windows(text)
        return self._verify(text, hashes[windows_found], windows_found) if len(windows_found) else []

    def _verify(self, text: str, hashes: npt.NDArray[np.uint64], windows_found: npt.NDArray[np.int64]) -> list[Match]:
        """Occurrences at the windows found, compared word by word."""
        first = np.searchsorted(self._keys, hashes, side="left")
        counts = np.searchsorted(self._keys, hashes, side="right") - first
        before = np.cumsum(counts) - counts
        windows = np.repeat(windows_found, counts)
        grams = self._grams[np.arange(len(windows)) + np.repeat(first - before, counts)]
        lengths = self._lengths[grams].astype(np.int64)
        equal = np.flatnonzero(self._equal(self._numbers_near(text, windows, lengths), windows, grams, lengths))
        return sorted(map(Match, *(found[equal].tolist() for found in (windows, lengths, grams))))

    def _numbers_near(
        self, text: str, windows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint32]:
        """Words of a text as numbers, 0 for words of no set and for words in no window."""
        _, starts, ends = _split(text, spans=True)
        change = np.zeros(len(starts) + 1, dtype=np.int64)
        np.add.at(change, windows, 1)
        np.add.at(change, np.minimum(windows + lengths, len(starts)), -1)
        near = np.flatnonzero(np.cumsum(change[:-1]))
        numbers = np.zeros(len(starts), dtype=np.uint32)
        spans = zip(starts[near].tolist(), ends[near].tolist(), strict=True)
        words = [folded(text[start:end]) for start, end in spans]
        numbers[near] = np.fromiter(map(self._vocabulary.get, words, repeat(0)), dtype=np.uint32, count=len(words))
        return numbers

    def _equal(
        self,
        numbers: npt.NDArray[np.uint32],
        windows: npt.NDArray[np.int64],
        grams: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Mask of the windows whose words are those of their n-gram."""
        equal = windows + lengths <= len(numbers)
        for offset in range(int(lengths.max(initial=0))):
            left = np.flatnonzero(equal & (lengths > offset))
            equal[left] = self._words[self._starts[grams[left]] + offset] == numbers[windows[left] + offset]
        return equal

    def _windows(self, text: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Hash of every window of `min_ngram` words, and the numbers of the windows whose hash is a key."""
        from tasks.decontaminate.kernel import find_windows

        words, _, _ = _split(text, spans=False)
        hashes, windows_found = np.empty(len(words), dtype=np.uint64), np.empty(len(words), dtype=np.int64)
        windows, found = find_windows(
            words, self.min_ngram, self._keys, self._known, self._shift, hashes, windows_found
        )
        return hashes[:windows], windows_found[:found]


def _distinct(
    words: npt.NDArray[np.uint32], start: npt.NDArray[np.int64], length: npt.NDArray[np.int64], ngram: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Index of the first of each distinct n-gram, in their order, and of each n-gram its number among these."""
    padded = np.concatenate([words, np.zeros(ngram, dtype=np.uint32)])
    rows = np.lib.stride_tricks.sliding_window_view(padded, ngram)[start]
    rows[np.arange(ngram) >= length[:, None]] = 0  # the number of no word
    _, first, found = np.unique(rows.view(f"V{4 * ngram}").ravel(), return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[found]


def words_of(text: str) -> list[str]:
    """Folded words of a text in order; as many as `word_spans` returns."""
    return [folded(text[start:end]) for start, end in word_spans(text)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each word in a text, in characters."""
    _, starts, ends = _split(text, spans=True)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _split(text: str, *, spans: bool) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Hash of each word, and its start and end in characters if `spans`."""
    from tasks.decontaminate.kernel import split_words

    data = np.frombuffer(text.encode(errors="surrogatepass"), dtype=np.uint8)
    capacity = len(data) // 2 + 1
    words = np.empty(capacity, dtype=np.uint64)
    starts, ends = np.empty((2, capacity if spans else 0), dtype=np.int64)
    count = split_words(data, *letters(), words, starts, ends)
    return words[:count], starts[:count], ends[:count]
