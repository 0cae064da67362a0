"""MinHash signatures and band hashes of columns of texts.

The signatures equal those of `datasketch.MinHash(scheme="affine32")` bit for bit: fmix32 of the 32-bit shingle hash,
then `a * h + b mod 2^32` with odd `a`, the minimum over the document for each of the permutations.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import write_numbers
from tasks.dedup import datasketch_engine, shingles
from tasks.dedup.document_index import Group, document_numbers
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Offsets, Texts, content_hashes, folded
from tasks.dedup.unicode_tables import build_tables

Signatures = npt.NDArray[np.uint32]
BATCH_TEXTS = 256


def permutations(count: int, seed: int) -> tuple[Signatures, Signatures]:
    """Multipliers (odd) and offsets, [count] each, drawn as in datasketch."""
    generator = np.random.RandomState(seed)
    a = generator.randint(0, 1 << 31, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, count, dtype=np.uint32)
    return a, b


def sign(texts: Texts, settings: DedupSettings) -> tuple[Signatures, Offsets]:
    """Signatures [texts, permutations] of normalised texts, and the words or characters in the sketch of each [texts].

    The signature of a text without a shingle is all ones.
    """
    from tasks.dedup import kernels

    a, b = permutations(settings.num_bands * settings.rows_per_band, settings.seed)
    words, limit = settings.shingle == "words", settings.sketch_characters
    signatures, units = kernels.sign_texts(*texts, words, settings.ngram, limit, build_tables().kinds, a, b)
    return signatures, units


def sketch_texts(column: pa.Array | pa.ChunkedArray, settings: DedupSettings) -> dict[str, pa.Array]:
    """Sketch of each text: number of units, content hash, band hashes."""
    if settings.engine == "datasketch":
        texts, units, bands = datasketch_engine.sketch(column, settings)
    else:
        from tasks.dedup import kernels

        texts = folded(column, settings)
        signatures, units = sign(texts, settings)
        bands = kernels.band_hashes(signatures, settings.num_bands, settings.rows_per_band)
    short = units < settings.ngram
    found = {"units": pa.array(units), "content": content_hashes(texts)}
    return found | {band_name(band): pa.array(hashes, mask=short) for band, hashes in enumerate(bands)}


def count_mismatches(texts: list[str], settings: DedupSettings) -> int:
    """Number of texts whose sketches or shingles by the compiled kernels are not those of datasketch."""
    column = pa.array(texts, pa.large_string())
    plain = settings.model_copy(update={"engine": "datasketch"})
    ours, theirs = (pa.table(sketch_texts(column, chosen)).to_pylist() for chosen in (settings, plain))
    found = (shingles.shingle_sets(column, settings), datasketch_engine.shingle_sets(column, plain))
    sets = ([values[one:end] for one, end in itertools.pairwise(starts.tolist())] for values, starts in found)
    return sum(row != other or not np.array_equal(*both) for row, other, *both in zip(ours, theirs, *sets, strict=True))


def sketch_group(folder: Folder, name: str, group: Group, settings: DedupSettings) -> Outcome:
    """Sketch the shards of one group into `sketch/part-NNNNN.parquet`, a row per document in order."""
    tables = [table for index in range(len(group.shards)) for table in _sketch_shard(group, index, settings)]
    if not tables:
        return Outcome()
    record = write_numbers(folder, f"sketch/part-{name.rpartition('-')[2]}.parquet", pa.concat_tables(tables))
    return Outcome(outputs=(record,))


def _sketch_shard(group: Group, index: int, settings: DedupSettings) -> Iterator[pa.Table]:
    row = 0
    with group.documents.open(group.shards[index]) as file:
        for batch in pq.ParquetFile(file).iter_batches(BATCH_TEXTS, columns=["id", "url", "text"]):
            if not batch.num_rows:
                continue
            columns = {
                "number": document_numbers(group.start + index, row, batch.num_rows),
                "id": batch["id"],
                "url": batch["url"],
                "length": pc.utf8_length(batch["text"]).cast(pa.int64()),
            }
            yield pa.table(columns | sketch_texts(batch["text"], settings))
            row += batch.num_rows


def band_name(band: int) -> str:
    """Column name of a band in the sketch files."""
    return f"band_{band:02d}"
