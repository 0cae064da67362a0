"""Sketches, shingle sets and buckets by plain Python and `datasketch`, for `dedup.engine = "datasketch"`.

The results equal those of the compiled kernels bit for bit.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.dedup import reference
from tasks.dedup.document_index import Numbers
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Hashes, Offsets, Sets, Texts, texts_of

UPDATE = 1 << 14  # shingles per call of datasketch, whose temporary arrays have `permutations` numbers for each


def sketch(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> tuple[Texts, Offsets, Hashes]:
    """Normalised texts, number of units of each [texts], and hashes [bands, texts] of their signatures."""
    from datasketch import MinHash  # imports scipy, which would delay the start of every command

    size = settings.num_bands * settings.rows_per_band
    empty = MinHash(num_perm=size, seed=settings.seed, scheme="affine32", hashfunc=int)
    texts = _folded(column, settings)
    signatures, counts = np.empty((len(texts), size), dtype=np.uint64), np.empty(len(texts), dtype=np.int64)
    for number, text in enumerate(texts):
        units = reference.unit_hashes(text[: settings.sketch_characters], settings.shingle == "words")
        low = [value & reference.MASK32 for value in reference.ngram_hashes(units, settings.ngram)]
        minhash = empty.copy()
        for start in range(0, len(low), UPDATE):
            minhash.update_batch(low[start : start + UPDATE])
        signatures[number], counts[number] = minhash.hashvalues, len(units)
    total = np.zeros((len(texts), settings.num_bands), dtype=np.uint64)
    for row in range(settings.rows_per_band):
        values = signatures[:, row :: settings.rows_per_band]
        total = reference.fmix64(total * np.uint64(reference.MULTIPLIER) + values)
    return texts_of(pa.array(texts, pa.large_string())), counts, total.T


def shingle_sequences(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> Sets:
    """Shingles of whole texts in their order, including repeated ones."""
    words = settings.shingle == "words"
    hashes = [reference.shingle_hashes(text, words, settings.ngram) for text in _folded(column, settings)]
    return _concatenated([np.array(some, dtype=np.uint64) for some in hashes])


def shingle_sets(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> Sets:
    """Sets of shingles of whole texts."""
    values, starts = shingle_sequences(column, settings)
    return _concatenated([np.unique(values[start:end]) for start, end in itertools.pairwise(starts.tolist())])


def buckets(keys: Hashes) -> tuple[npt.NDArray[np.int64], Numbers]:
    """Order of band hashes, bucket by bucket, and start of each bucket [buckets + 1].

    The rows of a band are the halves of a hash, so that the buckets of the index are those of equal hashes. The index
    has two equal bands, since it does not take fewer.
    """
    from datasketch import LeanMinHash, MinHashLSH  # as above

    index = MinHashLSH(num_perm=4, params=(2, 2))
    halves = np.ascontiguousarray(keys).view(np.uint32).reshape(-1, 2)
    sketches = [LeanMinHash(seed=1, hashvalues=pair, scheme="affine32") for pair in np.tile(halves, 2)]
    for place, one in enumerate(sketches):
        index.insert(place, one, check_duplication=False)
    order: list[int] = []
    starts = [0]
    placed = np.zeros(len(keys), dtype=bool)
    for place, one in enumerate(sketches):
        if not placed[place]:
            members = sorted(index.query(one))
            placed[members] = True
            order += members
            starts.append(len(order))
    return np.array(order, dtype=np.int64), np.array(starts, dtype=np.int64)


def _concatenated(sets: Sequence[Hashes]) -> Sets:
    starts = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    return Sets(np.concatenate([np.zeros(0, dtype=np.uint64), *sets]), starts)


def _folded(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> list[str]:
    texts = column.to_pylist()
    return [reference.folded(text) for text in texts] if settings.normalise else texts
