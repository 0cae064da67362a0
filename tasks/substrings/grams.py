"""Repeated n-grams of words: anchors by winnowing, exact hashes of the n-grams around them, and their first occurrence.

Of each window of n-grams of half the length the one with the smallest hash is an anchor. Two texts with a common run of
`min_words` words have a common window and therefore a common anchor. Only where an anchor occurs twice, the n-grams of
`min_words` words around it get an exact hash of 128 bits (BLAKE2b), by which they are compared.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
        positions = np.unique(np.arange(len(lowest)) + lowest)
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
    """Spans of characters of the n-grams that begin at these words, in ascending order; overlapping ones are merged."""
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
    return cuts


def without(text: str, cuts: list[tuple[int, int]]) -> str:
    """The rest of a text, joined by blank lines; pieces without a word are dropped."""
    edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
    pieces = [text[start:end].strip() for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return "\n\n".join(piece for piece in pieces if WORD.search(piece))
