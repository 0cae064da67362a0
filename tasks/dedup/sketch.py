"""MinHash signatures and their bands, a column of texts at a time.

The signatures are those of `datasketch.MinHash(scheme="affine32")`, bit for bit: fmix32 of the 32-bit shingle hash,
then `a * h + b mod 2^32` with odd `a`, the minimum over the document for each of the permutations.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.dedup.alphabet import alphabet
from tasks.dedup.groups import Group, numbered, write_numbers
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Places, Texts, content_hashes, folded
from tasks.steps import Outcome
from tasks.storage import Folder

Signatures = npt.NDArray[np.uint32]
AT_ONCE = 256  # texts


class Signed(NamedTuple):
    """Signatures of a column of texts."""

    signatures: Signatures
    """[texts, permutations]; all ones where a text has no shingle."""
    units: Places
    """[texts] words or characters that the sketch has read."""


def permutations(count: int, seed: int) -> tuple[Signatures, Signatures]:
    """Multipliers (odd) and offsets [count] each, drawn as datasketch draws them."""
    generator = np.random.RandomState(seed)
    a = generator.randint(0, 1 << 31, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, count, dtype=np.uint32)
    return a, b


def minhash(hashes: Signatures, starts: Places, count: int, seed: int) -> Signatures:
    """Signatures [documents, count] of documents given by their 32-bit shingle hashes.

    Args:
        hashes: [total] of all documents in a row.
        starts: [documents + 1] where each begins, and the end.
        count: number of permutations.
        seed: of the permutations.
    """
    from tasks.dedup import kernels

    return kernels.sign_hashes(hashes, starts, *permutations(count, seed))


def sign(texts: Texts, settings: DedupSettings) -> Signed:
    """Signatures of texts in the form in which they are compared."""
    from tasks.dedup import kernels

    words, count = settings.shingle == "words", settings.bands * settings.rows
    a, b = permutations(count, settings.seed)
    limit = settings.sketch_characters
    return Signed(*kernels.sign_texts(*texts, words, settings.ngram, limit, alphabet().kinds, a, b))


def sketch_texts(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> dict[str, pa.Array]:
    """What is kept of texts to compare them by: units, content hash, band hashes."""
    from tasks.dedup import kernels

    texts = folded(column, settings)
    signatures, units = sign(texts, settings)
    bands = kernels.band_hashes(signatures, settings.bands, settings.rows)
    short = units < settings.ngram
    found = {"units": pa.array(units), "content": content_hashes(texts)}
    return found | {band_name(band): pa.array(hashes, mask=short) for band, hashes in enumerate(bands)}


def sketch_group(folder: Folder, name: str, group: Group, settings: DedupSettings) -> Outcome:
    """Sketch the shards of one group: `sketch/part-NNNNN.parquet`, a row for each document in order."""
    tables = [table for place in range(len(group.shards)) for table in _sketch_shard(group, place, settings)]
    if not tables:
        return Outcome()
    record = write_numbers(folder, f"sketch/part-{name.rpartition('-')[2]}.parquet", pa.concat_tables(tables))
    return Outcome(outputs=(record,))


def _sketch_shard(group: Group, place: int, settings: DedupSettings) -> Iterator[pa.Table]:
    row = 0
    with group.documents.open(group.shards[place]) as file:
        for batch in pq.ParquetFile(file).iter_batches(AT_ONCE, columns=["id", "url", "text"]):
            if not batch.num_rows:
                continue
            columns = {
                "number": numbered(group.start + place, row, batch.num_rows),
                "id": batch["id"],
                "url": batch["url"],
                "length": pc.utf8_length(batch["text"]).cast(pa.int64()),
            }
            yield pa.table(columns | sketch_texts(batch["text"], settings))
            row += batch.num_rows


def band_name(band: int) -> str:
    """Column of a band in the sketch files."""
    return f"band_{band:02d}"
