"""Groups of near-duplicate texts, by MinHash over shingles of words (Broder 1997); does not import torch."""

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpt2train.data.text_units import units_of

SHINGLE = 5  # words
MAX_WORD = 20  # mean characters of a word, above which characters are taken
BANDS, ROWS = 24, 4  # finds 79 % of the pairs of similarity 0.5, 96 % of 0.6, 99.8 % of 0.7
MIN_SIMILARITY = 0.5  # estimated Jaccard similarity of the texts of a group with one of its texts
CHUNK = 4096  # shingles hashed at a time: 3 MB

Hashes: TypeAlias = "npt.NDArray[np.uint64]"


def near_duplicate_groups(texts: Sequence[str]) -> list[int]:
    """Return the group of each text, as the index of the first text of the group.

    Texts are compared with the first of those that share a band with them, so that the work is linear.
    """
    if not texts:
        return []
    factors = _factors()
    signatures = np.stack([_signature(text, *factors) for text in texts])
    parents = list(range(len(texts)))
    for band in range(BANDS):
        rows = np.ascontiguousarray(signatures[:, band * ROWS : (band + 1) * ROWS])
        keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
        order = np.argsort(keys, kind="stable")
        starts = [0, *(np.flatnonzero(keys[order][1:] != keys[order][:-1]) + 1).tolist(), len(order)]
        for start, end in pairwise(starts):
            if end - start > 1:
                _join(parents, order[start:end], signatures)
    return [_root(parents, index) for index in range(len(texts))]


def _join(parents: list[int], members: "npt.NDArray[np.intp]", signatures: Hashes) -> None:
    """Join the texts of a bucket that resemble its first one."""
    similar = (signatures[members[1:]] == signatures[members[0]]).mean(axis=1) >= MIN_SIMILARITY
    for member in members[1:][similar].tolist():
        first, second = sorted((_root(parents, int(members[0])), _root(parents, member)))
        parents[second] = first


def _root(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _factors() -> tuple[Hashes, Hashes]:
    """Return the odd factors and the offsets of the hash functions."""
    generator = np.random.Generator(np.random.PCG64(0))
    factors, offsets = generator.integers(0, 1 << 63, (2, BANDS * ROWS), dtype=np.uint64)
    return factors | np.uint64(1), offsets


def _signature(text: str, factors: Hashes, offsets: Hashes) -> Hashes:
    """Return the smallest hash of the text's shingles by each function, uint64 [functions]."""
    shingles = _shingles(text)
    parts = [
        (shingles[start : start + CHUNK, None] * factors + offsets).min(axis=0)
        for start in range(0, len(shingles), CHUNK)
    ]
    return np.minimum.reduce(parts)


def _shingles(text: str) -> Hashes:
    """Return the hashes of the distinct shingles of a text; a shorter text is one shingle.

    In scripts without spaces between words each character is a word (`gpt2train.data.text_units`).
    """
    words: Sequence[str] = units_of(text.lower())
    if len(text) > MAX_WORD * len(words):
        words = "".join(words)
    cache: dict[str, int] = {}
    units = [cache.get(word) or cache.setdefault(word, zlib.crc32(word.encode("utf-8", "replace"))) for word in words]
    hashes = np.asarray(units, np.uint64)
    count = max(len(hashes) - SHINGLE + 1, 1)
    found = np.zeros(count, np.uint64)
    for at in range(min(SHINGLE, len(hashes))):
        found = (found + hashes[at : at + count]) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return np.unique(found)
