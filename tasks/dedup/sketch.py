"""MinHash signatures and their bands, many documents at a time.

The signatures are those of `datasketch.MinHash(scheme="affine32")`, bit for bit: fmix32 of the 32-bit shingle hash,
then `a * h + b mod 2^32` with odd `a`, the minimum over the document for each of the permutations.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import (
    MULTIPLIER,
    Hashes,
    WordHashes,
    content_hash,
    fmix64,
    normalise,
    shingles_of_many,
    word_hashes,
)
from tasks.shards import read_table, write_table
from tasks.steps import Outcome
from tasks.storage import Folder

Signatures = npt.NDArray[np.uint32]

AT_ONCE = 1 << 14  # shingles a permutation is applied to at a time: three 64 KiB buffers, which stay in the L2 cache


def permutations(count: int, seed: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Multipliers (odd) and offsets [count] each, drawn as datasketch draws them."""
    generator = np.random.RandomState(seed)
    a = generator.randint(0, 1 << 31, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, count, dtype=np.uint32)
    return a, b


def minhash(hashes: Signatures, starts: npt.NDArray[np.int64], count: int, seed: int) -> Signatures:
    """Signatures of several documents.

    Permutation by permutation over a long run of shingles, so that each numpy call does much work in the cache:
    about 50 ns a shingle for 128 permutations.

    Args:
        hashes: [total] 32-bit shingle hashes of all documents in a row.
        starts: [documents] where each begins, ascending; none is empty.
        count: number of permutations.
        seed: of the permutations.

    Returns:
        [documents, count]
    """
    a, b = permutations(count, seed)
    mixed = fmix32(hashes.copy())
    result = np.full((count, len(starts)), np.uint32(0xFFFFFFFF))
    buffer = np.empty(AT_ONCE, dtype=np.uint32)
    for begin in range(0, len(mixed), AT_ONCE):
        piece = mixed[begin : begin + AT_ONCE]
        # Documents that reach into this piece; the first may have begun before it.
        first = int(np.searchsorted(starts, begin, side="right")) - 1
        last = int(np.searchsorted(starts, begin + len(piece), side="left"))
        inner = np.maximum(starts[first:last] - begin, 0)
        work = buffer[: len(piece)]
        for row in range(count):
            np.multiply(piece, a[row], out=work)
            np.add(work, b[row], out=work)
            part = result[row, first:last]
            np.minimum(part, np.minimum.reduceat(work, inner), out=part)
    return np.ascontiguousarray(result.T)


def band_hashes(signatures: Signatures, bands: int, rows: int) -> Hashes:
    """[documents, bands] one 64-bit hash for the `rows` values of each band."""
    cells = signatures.reshape(len(signatures), bands, rows).astype(np.uint64)
    total = np.zeros(cells.shape[:2], dtype=np.uint64)
    for row in range(rows):
        total *= MULTIPLIER
        total += cells[:, :, row]
        fmix64(total)
    return total


def sketch_shard(folder: Folder, name: str, shard: str, source: Folder, settings: DedupSettings) -> Outcome:
    """Sketch one shard: `sketch/part-NNNNN.parquet`, a row for each document in order."""
    table = read_table(source, shard, ["id", "url", "text"])
    texts = table["text"].to_pylist()
    cache, contents, words = WordHashes(), [], []
    for text in texts:
        normalised = normalise(text)
        contents.append(content_hash(normalised))
        head = normalised if len(text) <= settings.sketch_characters else normalise(text[: settings.sketch_characters])
        words.append(word_hashes(head, cache))
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "id": table["id"],
        "url": table["url"],
        "length": pa.array([len(text) for text in texts], pa.int64()),
        "words": pa.array([len(one) for one in words], pa.int64()),
        "content": pa.array(contents, pa.binary(16)),
    }
    hashes, missing = sketch_words(words, settings)
    for band in range(settings.bands):
        columns[band_name(band)] = pa.array(hashes[:, band], pa.uint64(), mask=missing)
    target = f"sketch/part-{name.rpartition('-')[2]}.parquet"
    return Outcome(outputs=(write_table(folder, target, pa.table(columns)),))


def sketch_words(words: list[Hashes], settings: DedupSettings) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """Band hashes [documents, bands], and which documents are too short to have any [documents]."""
    missing = np.array([len(one) < settings.ngram for one in words], dtype=bool)
    bands = np.zeros((len(words), settings.bands), dtype=np.uint64)
    long_enough = [one for one in words if len(one) >= settings.ngram]
    if long_enough:
        hashes, starts = shingles_of_many(long_enough, settings.ngram)
        count = settings.bands * settings.rows
        signatures = minhash(hashes.astype(np.uint32), starts, count, settings.seed)
        bands[~missing] = band_hashes(signatures, settings.bands, settings.rows)
    return bands, missing


def band_name(band: int) -> str:
    """Column of a band in the sketch files."""
    return f"band_{band:02d}"


def fmix32(hashes: Signatures) -> Signatures:
    """MurmurHash3's 32-bit finaliser, in place."""
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes
