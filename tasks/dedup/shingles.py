"""Text -> the hashes of its word n-grams, and a hash of the whole.

Words are `\\w+` of the NFKC-normalised, casefolded text. A word's hash is BLAKE2b (64 bits); an n-gram's hash is a
polynomial of its words' hashes, finished with MurmurHash3's fmix64. Languages without spaces between words (Chinese,
Thai) give long words and hence few shingles.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

WORD = re.compile(r"\w+")
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 / golden ratio
MOST_WORDS = 1 << 20  # kept hashed at a time: about 150 MB


class WordHashes(dict[str, int]):
    """Word -> 64-bit hash, each distinct word hashed once."""

    def __missing__(self, word: str) -> int:
        if len(self) >= MOST_WORDS:
            self.clear()
        number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        self[word] = number
        return number


def normalise(text: str) -> str:
    """NFKC and casefold: what differs only in case or compatibility forms is the same."""
    return unicodedata.normalize("NFKC", text).casefold()


def content_hash(normalised: str) -> bytes:
    """128-bit hash of a normalised text, blind to how it is spaced."""
    return hashlib.blake2b(" ".join(normalised.split()).encode(), digest_size=16).digest()


def word_hashes(normalised: str, cache: WordHashes) -> Hashes:
    """[words] hashes of the words in order."""
    words = WORD.findall(normalised)
    return np.fromiter(map(cache.__getitem__, words), dtype=np.uint64, count=len(words))


def ngram_hashes(words: Hashes, ngram: int) -> Hashes:
    """[max(words - ngram + 1, 0)] hashes of all runs of `ngram` words in order, repeated ones included."""
    count = max(len(words) - ngram + 1, 0)
    total = words[:count].copy()
    for shift in range(1, ngram):
        total *= MULTIPLIER
        total += words[shift : shift + count]
    return fmix64(total)


def shingle_set(text: str, ngram: int, cache: WordHashes) -> Hashes:
    """Sorted distinct n-gram hashes of a whole text."""
    return np.unique(ngram_hashes(word_hashes(normalise(text), cache), ngram))


def shingles_of_many(words: Sequence[Hashes], ngram: int) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """n-gram hashes of several documents in a row, computed in one go.

    Args:
        words: word hashes of each document; each has at least `ngram`.

    Returns:
        hashes [total] and where each document starts in them [documents].
    """
    counts = np.array([len(one) - ngram + 1 for one in words], dtype=np.int64)
    hashes = ngram_hashes(np.concatenate(words), ngram)
    # n-grams that reach over the end of a document: the ngram - 1 places after its last one.
    inside = np.ones(len(hashes), dtype=bool)
    ends = np.cumsum([len(one) for one in words])[:-1]
    for back in range(1, ngram):
        inside[ends - back] = False
    return hashes[inside], np.cumsum(counts) - counts


def jaccard(one: Hashes, other: Hashes) -> float:
    """Jaccard similarity of two sorted sets; 0 where both are empty."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    union = len(one) + len(other) - common
    return common / union if union else 0.0


def fmix64(hashes: Hashes) -> Hashes:
    """MurmurHash3's 64-bit finaliser, in place: every bit of the input reaches every bit of the output."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    hashes ^= hashes >> np.uint64(33)
    return hashes
