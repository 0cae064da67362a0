"""Content hashes and sets of shingle hashes of columns of texts.

Words are runs of letters, digits and vowel signs of the folded text, and each letter of a script without spaces
between words (Chinese, Thai) is a word of its own; characters are the code points of the text. Each has a 64-bit hash.
The hash of a shingle is a polynomial of the hashes of its units, finished with MurmurHash3's fmix64.
"""

import hashlib
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.dedup.settings import DedupSettings
from tasks.dedup.unicode_tables import build_tables, normalise, normalise_visible

Hashes = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]


class Texts(NamedTuple):
    """Texts in the layout of the kernels."""

    data: npt.NDArray[np.uint8]  # [bytes] concatenated UTF-8 of all texts
    offsets: Offsets  # [texts + 1] start of each text, and the end


class Sets(NamedTuple):
    """Sets of shingle hashes."""

    values: Hashes  # concatenated members of all sets, ascending within each
    starts: Offsets  # [sets + 1] start of each set, and the end


def texts_of(column: pa.Array | pa.ChunkedArray) -> Texts:
    """Bytes and offsets of a column of strings without nulls."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return Texts(np.zeros(0, dtype=np.uint8), np.zeros(len(array) + 1, dtype=np.int64))
    positions = np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1, offset=8 * array.offset)
    return Texts(np.frombuffer(data, dtype=np.uint8), positions)


def folded(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> Texts:
    """Texts normalised for comparison."""
    from tasks.dedup import kernels

    data, offsets = texts_of(column)
    if not settings.normalise:
        return Texts(data[offsets[0] : offsets[-1]].copy(), offsets - offsets[0])
    table = build_tables()
    sizes = kernels.folded_sizes(data, offsets, table.kinds, table.starts)
    ready = sizes < 0  # texts with characters outside the table: normalised by Python one by one
    if ready.any():
        ways = {-1: normalise_visible, -2: normalise}
        texts = [
            ways[size](text) if size < 0 else text
            for text, size in zip(column.to_pylist(), sizes.tolist(), strict=True)
        ]
        data, offsets = texts_of(pa.array(texts, pa.large_string()))
        sizes = np.where(ready, np.diff(offsets), sizes)
    return Texts(*kernels.fold(data, offsets, ready, *table, int(sizes.sum())))


def content_hashes(texts: Texts) -> pa.Array:
    """128-bit hashes [texts] of normalised texts: equal ones are exact duplicates."""
    pieces = itertools.pairwise(texts.offsets.tolist())
    hashes = [hashlib.blake2b(texts.data[start:end].data, digest_size=16).digest() for start, end in pieces]
    return pa.array(hashes, pa.binary(16))


def shingle_sequences(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> Sets:
    """Shingles of whole texts in their order, including repeated ones."""
    from tasks.dedup import kernels

    texts = folded(column, settings)
    return Sets(*kernels.shingle_texts(*texts, settings.shingle == "words", settings.ngram, build_tables().kinds))


def shingle_sets(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> Sets:
    """Sets of shingles of whole texts."""
    from tasks.dedup import kernels

    values, starts = shingle_sequences(column, settings)
    for start, end in itertools.pairwise(starts.tolist()):
        values[start:end].sort()  # numpy's sort of integers is vectorised, numba's is not
    return Sets(*kernels.distinct(values, starts))
