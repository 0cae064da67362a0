"""Repeated n-grams of words: anchors by winnowing, exact hashes of the n-grams around them, and their first occurrence.

Of each window of n-grams of half the length the one with the smallest hash is an anchor. Two texts with a common run of
`min_words` words have a common window and therefore a common anchor. Only where an anchor occurs twice, the n-grams of
`min_words` words around it get an exact hash of 128 bits (BLAKE2b), by which they are compared.
"""

import hashlib
import unicodedata
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpt2train.data.text_units import unit_spans
from tasks.core.document import pieces_between
from tasks.core.sorted_arrays import sorted_unique
from tasks.dedup.reference import WORD
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import shingle_sequences

Numbers = npt.NDArray[np.int64]


class Grams(NamedTuple):
    """N-grams of words of a document."""

    positions: Numbers  # [n-grams] index of the first word of each
    keys: Numbers  # [n-grams, 2] hash of each


def anchors_of(texts: pa.ChunkedArray, min_words: int) -> list[tuple[Numbers, Numbers]]:
    """Index of the first word, and hash, of each anchor of each text, in ascending order of the index."""
    size = min_words // 2
    settings = DedupSettings(ngram=2, normalise=False).model_copy(update={"ngram": size})
    values, starts = shingle_sequences(texts, settings)
    window = min_words - size + 1
    found = []
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        hashes = values[begin:end].view(np.int64)
        if len(hashes) < window:
            found.append((np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)))
            continue
        lowest = np.lib.stride_tricks.sliding_window_view(hashes, window).argmin(axis=1)
        positions = sorted_unique(np.arange(len(lowest)) + lowest)
        found.append((positions, hashes[positions]))
    return found


def word_spans(text: str) -> Numbers:
    """[words, 2] first character of each word and the one after its last."""
    return np.array([found.span() for found in WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)


def grams_near(text: str, anchors: Numbers, min_words: int) -> Grams:
    """N-grams of `min_words` words that contain an anchor, given by its first word."""
    spans = word_spans(text)
    last = len(spans) - min_words
    near = np.zeros(max(0, last + 1), dtype=bool)
    for anchor in anchors.tolist():
        near[max(0, anchor + min_words // 2 - min_words) : max(0, min(anchor, last) + 1)] = True
    positions = np.flatnonzero(near)
    starts, ends = spans[positions, 0].tolist(), spans[positions + min_words - 1, 1].tolist()
    pieces = (" ".join(text[start:end].split()) for start, end in zip(starts, ends, strict=True))
    digests = b"".join(hashlib.blake2b(piece.encode(), digest_size=16).digest() for piece in pieces)
    return Grams(positions, np.frombuffer(digests, dtype=">i8").astype(np.int64).reshape(-1, 2))


def repeated(keys: Numbers, numbers: Numbers, positions: Numbers) -> npt.NDArray[np.bool_]:
    """Mask of the n-grams that are not the first with their hash, by number of the document and position."""
    order = np.lexsort((positions, numbers, keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    later = np.zeros(len(keys), dtype=bool)
    later[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return later


def cut_spans(text: str, positions: Numbers, min_words: int) -> list[tuple[int, int]]:
    """Spans of characters of the n-grams that begin at these words, in ascending order; overlapping ones are merged.

    A cut ends neither inside what white space separates, as `can't` or `3.15`, nor between a letter and its signs.
    """
    spans = word_spans(text)
    cuts: list[tuple[int, int]] = []
    reached = 0  # first word after the last cut
    for position in positions.tolist():
        start, end = int(spans[position, 0]), int(spans[position + min_words - 1, 1])
        if cuts and position <= reached:
            cuts[-1] = (cuts[-1][0], end)
        else:
            cuts.append((start, end))
        reached = position + min_words
    units = unit_spans(text)
    starts = [start for start, _ in units]
    return [
        _at_units(text, cut, units[bisect_right(starts, cut[0]) - 1], units[bisect_left(starts, cut[1]) - 1])
        for cut in cuts
    ]


def _at_units(text: str, cut: tuple[int, int], first: tuple[int, int], last: tuple[int, int]) -> tuple[int, int]:
    """Cut without the parts of its first and last unit, but with their punctuation; as it is if nothing is left."""
    start = first[1] if _has_letters(text[first[0] : cut[0]]) else first[0]
    end = last[0] if _has_letters(text[cut[1] : last[1]]) else last[1]
    return (start, end) if start < end else cut


def _has_letters(text: str) -> bool:
    """Return True if a text has a letter, a digit or a sign of a letter."""
    return any(unicodedata.category(character)[0] in "LMN" for character in text)


def without(text: str, cuts: list[tuple[int, int]]) -> str:
    """The rest of a text, joined by blank lines; pieces without a word are dropped."""
    return "\n\n".join(piece for piece in pieces_between(text, cuts) if WORD.search(piece))
