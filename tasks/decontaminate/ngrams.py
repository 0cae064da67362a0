"""Index of the word n-grams of evaluation texts, to find their occurrences in a text.

Words are compared in their folded form (`folding`); positions refer to the original text (folding a whole text can
change its length: 'İ' becomes two characters). A text of an evaluation set is indexed by all its n-grams of `ngram`
words; a shorter text of at least `min_ngram` words is one n-gram; still shorter texts are ignored.

Every n-gram has at least `min_ngram` words, and its first `min_ngram` words are its key. A compiled loop (`kernel`)
hashes every window of `min_ngram` words of a document and returns the few windows whose hash is a key. There the
n-grams of the hash of all their words are looked up, since a thousand may have one key, as in prompts with the same
beginning; those are compared word by word. The result therefore does not depend on the hash. A text without such a
window takes 21 ms per megabyte.

Memory: the words of the sets as numbers (4 bytes each), 45 bytes per n-gram, a table of 2^16 to 2^26 booleans of one
byte each, and the vocabulary.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.core.sorted_arrays import sorted_unique
from tasks.decontaminate.folding import folded, letters

SLOTS_PER_NGRAM = 16  # in the table of booleans: at most one window in 16 is looked up in vain


class Match(NamedTuple):
    """Occurrence of an n-gram of the index in a text."""

    start: int  # index of its first word in the text
    length: int  # number of words
    gram: int  # number of the n-gram in the index


class Keys(NamedTuple):
    """Hashes that windows are searched for by; see `kernel.find_windows`."""

    keys: npt.NDArray[np.uint64]  # ascending
    known: npt.NDArray[np.bool_]
    shift: np.uint64


NO_KEYS = Keys(np.zeros(0, dtype=np.uint64), np.zeros(2, dtype=bool), np.uint64(63))


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
        # Separated by line ends, the texts have the same words as one by one.
        whole_text = "\n\n".join(texts)
        words, starts, ends = _split(whole_text, spans=True)
        self._vocabulary, self._words = _numbered(whole_text, starts, ends)
        places = np.cumsum([0, *(len(text) + 2 for text in texts)])
        sizes = np.diff(np.searchsorted(starts, places))
        self.ignored = int((sizes < min_ngram).sum())
        # All n-grams: their text, their first word within it and among all words, and their number of words.
        lengths = np.minimum(sizes, ngram)
        counts = np.where(sizes < min_ngram, 0, sizes - lengths + 1)
        text = np.repeat(np.arange(len(texts)), counts)
        offset = np.arange(len(text)) - (np.cumsum(counts) - counts)[text]
        start, length = (np.cumsum(sizes) - sizes)[text] + offset, lengths[text]
        hashes = np.zeros(len(start), dtype=np.uint64)
        for size in np.unique(length).tolist():
            hashes[length == size] = _windows(words, size)[0][start[length == size]]
        first, gram = distinct(hashes, self._words, start, length, ngram)
        self._starts, self._lengths = start[first], length[first].astype(np.uint8)
        holders = sorted_unique(gram * len(texts) + text)  # pairs of an n-gram and a text
        self._holders = (holders % max(len(texts), 1)).astype(np.int32)
        self._ends = np.cumsum(np.bincount(holders // max(len(texts), 1), minlength=len(first)))
        every = sorted_unique(_windows(words, min_ngram)[0][start])
        bits = min(max(16, (SLOTS_PER_NGRAM * len(every)).bit_length()), 26)
        self._keys = Keys(every, np.zeros(1 << bits, dtype=bool), np.uint64(64 - bits))
        self._keys.known[every >> self._keys.shift] = True
        hashes = hashes[first]
        order = np.argsort(hashes, kind="stable")
        self._by_hash: dict[int, tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]] = {}
        for size in np.unique(self._lengths).tolist():
            grams = order[self._lengths[order] == size]
            self._by_hash[size] = hashes[grams], grams.astype(np.int32)

    @property
    def size(self) -> int:
        """Number of distinct n-grams."""
        return len(self._lengths)

    def sources(self, gram: int) -> list[int]:
        """Numbers of the texts that contain an n-gram, in order."""
        return self._holders[self._ends[gram - 1] if gram else 0 : self._ends[gram]].tolist()

    def matches(self, text: str) -> list[Match]:
        """All occurrences of n-grams of the index in a text, by start, then length."""
        words, _, _ = _split(text, spans=False)
        _, found = _windows(words, self.min_ngram, self._keys)
        return self._verify(text, *self._candidates(words, found)) if len(found) else []

    def _candidates(
        self, words: npt.NDArray[np.uint64], found: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Pairs of a window found and an n-gram with the hash of as many words."""
        pairs = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))]
        for length, (known, numbers) in self._by_hash.items():
            hashes, _ = _windows(words, length)
            windows = found[found < len(hashes)]
            first = np.searchsorted(known, hashes[windows], side="left")
            counts = np.searchsorted(known, hashes[windows], side="right") - first
            before = np.cumsum(counts) - counts
            grams = numbers[np.arange(counts.sum()) + np.repeat(first - before, counts)]
            pairs.append((np.repeat(windows, counts), grams))
        starts, grams = zip(*pairs, strict=True)
        return np.concatenate(starts), np.concatenate(grams)

    def _verify(self, text: str, windows: npt.NDArray[np.int64], grams: npt.NDArray[np.int32]) -> list[Match]:
        """Occurrences among pairs of a window and an n-gram, compared word by word."""
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


def _windows(
    words: npt.NDArray[np.uint64], length: int, keys: Keys = NO_KEYS
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Hash of every window of `length` words, and the numbers of the windows whose hash is a key."""
    from tasks.decontaminate.kernel import find_windows

    hashes, found = np.empty(len(words), dtype=np.uint64), np.empty(len(words), dtype=np.int64)
    windows, count = find_windows(words, length, *keys, hashes, found)
    return hashes[:windows], found[:count]


def _numbered(
    text: str, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[dict[str, int], npt.NDArray[np.uint32]]:
    """Number of each folded word of a text, from 1, and its words as these numbers."""
    words = [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    vocabulary: dict[str, int] = {}
    numbers = {word: vocabulary.setdefault(folded(word), len(vocabulary) + 1) for word in dict.fromkeys(words)}
    return vocabulary, np.fromiter(map(numbers.__getitem__, words), dtype=np.uint32, count=len(words))


def distinct(
    hashes: npt.NDArray[np.uint64],
    words: npt.NDArray[np.uint32],
    start: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
    ngram: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Index of the first of each distinct n-gram, in their order, and of each n-gram its number among these."""
    padded = np.concatenate([words, np.zeros(ngram, dtype=np.uint32)])
    rows = np.lib.stride_tricks.sliding_window_view(padded, ngram)[start]
    rows[np.arange(ngram) >= length[:, None]] = 0  # the number of no word
    _, first, found = np.unique(hashes, return_index=True, return_inverse=True)
    if (rows != rows[first[found]]).any():  # two n-grams have one hash: compare the words, four times as slow
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
