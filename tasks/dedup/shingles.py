"""Columns of texts -> what is compared: their content hashes, and their sets of shingle hashes.

Words are `\\w+` of the folded text (NFKC, casefold, white space joined), characters its code points; each has a 64-bit
hash. A shingle's hash is a polynomial of its units' hashes, finished with MurmurHash3's fmix64. Languages without
spaces between words (Chinese, Thai) give long words and hence few shingles: take characters there.
"""

import hashlib
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.dedup.alphabet import alphabet
from tasks.dedup.plain import normalise
from tasks.dedup.settings import DedupSettings

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


class Texts(NamedTuple):
    """Texts as the kernels take them."""

    data: npt.NDArray[np.uint8]
    """UTF-8 of all texts in a row."""
    offsets: Places
    """[texts + 1] where each begins, and the end."""


class Sets(NamedTuple):
    """Sets of shingle hashes."""

    values: Hashes
    """The members of all sets in a row, ascending in each."""
    starts: Places
    """[sets + 1] where each begins, and the end."""


def texts_of(column: pa.Array | pa.ChunkedArray) -> Texts:
    """The bytes of a column of strings without nulls."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return Texts(np.zeros(0, dtype=np.uint8), np.zeros(len(array) + 1, dtype=np.int64))
    places = np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1, offset=8 * array.offset)
    return Texts(np.frombuffer(data, dtype=np.uint8), places)


def folded(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> Texts:
    """Texts in the form in which they are compared."""
    from tasks.dedup import kernels

    data, offsets = texts_of(column)
    if not settings.normalise:
        return Texts(data[offsets[0] : offsets[-1]].copy(), offsets - offsets[0])
    table = alphabet()
    sizes = kernels.survey(data, offsets, table.kinds, table.starts)
    ready = sizes < 0  # what the table does not know: normalised by Python one by one
    if ready.any():
        texts = [
            normalise(text) if by_python else text
            for text, by_python in zip(column.to_pylist(), ready.tolist(), strict=True)
        ]
        data, offsets = texts_of(pa.array(texts, pa.large_string()))
        sizes = np.where(ready, np.diff(offsets), sizes)
    return Texts(*kernels.fold(data, offsets, ready, *table, int(sizes.sum())))


def content_hashes(texts: Texts) -> pa.Array:
    """[texts] 128-bit hashes of texts as they are compared: equal ones are exact duplicates."""
    pieces = itertools.pairwise(texts.offsets.tolist())
    hashes = [hashlib.blake2b(texts.data[start:end].data, digest_size=16).digest() for start, end in pieces]
    return pa.array(hashes, pa.binary(16))


def shingle_sets(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> Sets:
    """The sets of shingles of whole texts."""
    from tasks.dedup import kernels

    texts = folded(column, settings)
    values, starts = kernels.shingle_texts(*texts, settings.shingle == "words", settings.ngram, alphabet().kinds)
    for start, end in itertools.pairwise(starts.tolist()):
        values[start:end].sort()  # numpy's sort of integers is vectorised, numba's is not
    return Sets(*kernels.distinct(values, starts))
