"""Global shuffle of the documents, by their ids and a seed alone.

The order is that of `blake2b(seed, id)`: an exact uniform permutation, independent of the division into shards and of
the number of workers. Two passes, after DCLM's tokshuf: scatter each document to the cell of its key, then sort each
cell, which fits in memory. Writes `shuffled/part-00000.parquet`, one file per cell, schema unchanged.

The first pass writes a file per group of shards, in which each cell has its own row groups; in the second pass each
cell reads its row groups of every file: groups x cells small reads. Groups have 32 MiB of Parquet and cells 8,192
documents up to 2,048 groups and 1,024 cells. Above that they grow, cells up to 256 MiB (some 0.7 GB of text), then the
number of cells grows. Cells are also limited by bytes, so large documents make cells of fewer rows. A billion documents
of 2 kB make 2,048 groups, 3,000 cells and six million reads of 120 kB.
"""

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, output_names
from tasks.core.runner import Runner
from tasks.core.shards import ROW_GROUP, in_groups, read_table, write_table
from tasks.core.step import Step
from tasks.shuffle.settings import ShuffleSettings

CELL, KEY = "_cell", "_key"
MAX_CELLS = 1024
GROUP_ROWS, GROUP_BYTES, MAX_GROUPS = 1 << 16, 32 << 20, 2048
MIN_GROUPS = 4  # of a small corpus, so that several workers read it


def shuffle(root: Folder, documents: Manifest, settings: ShuffleSettings, runner: Runner) -> Manifest:
    """Shuffle all documents into `shuffled/`; no row is dropped."""
    step = Step(root, "shuffle", version=2, parameters=settings, inputs={"documents": documents}, folder="shuffled")
    if done := runner.finished(step):
        return done
    records = documents.outputs
    if not records:
        return step.commit(Outcome())
    rows, size = sum(record.rows or 0 for record in records), sum(record.bytes for record in records)
    cuts = in_groups(records, GROUP_ROWS, min(GROUP_BYTES, size // MIN_GROUPS), MAX_GROUPS)
    groups = [tuple(records[shard].name for shard in shards) for shards in cuts]
    cells = count_cells(rows, size, settings)
    scattered = runner.batches(step, "scatter", groups, scatter_shards, root / documents.folder, settings.seed, cells)
    names = output_names(scattered)
    return step.commit(Outcome.total(runner.batches(step, "part", range(cells), sort_cell, names)))


def count_cells(rows: int, size: int, settings: ShuffleSettings) -> int:
    """Number of cells for a corpus of `rows` documents and `size` bytes."""
    by_rows = min(-(-rows // settings.rows_per_cell), MAX_CELLS)
    return max(1, by_rows, -(-size // settings.bytes_per_cell))


def shuffle_key(seed: int, document_id: str) -> bytes:
    """Sort key of a document: 16 bytes, compared as bytes."""
    return hashlib.blake2b(document_id.encode(), digest_size=16, key=seed.to_bytes(8, "little")).digest()


def cell_of(key: bytes, cells: int) -> int:
    """Cell of a key. Cells are consecutive ranges of keys, so their concatenation is sorted."""
    return (int.from_bytes(key[:8], "big") * cells) >> 64


def scatter_shards(folder: Folder, name: str, shards: Sequence[str], source: Folder, seed: int, cells: int) -> Outcome:
    """Rewrite a group of shards with rows grouped by cell; no row group has rows of two cells."""
    table = pa.concat_tables([read_table(source, shard) for shard in shards])
    keys = [shuffle_key(seed, document_id) for document_id in table["id"].to_pylist()]
    numbers = [cell_of(key, cells) for key in keys]
    table = table.append_column(CELL, pa.array(numbers, pa.int32())).append_column(KEY, pa.array(keys, pa.binary(16)))
    rows_of: dict[int, list[int]] = {}
    for row, cell in enumerate(numbers):
        rows_of.setdefault(cell, []).append(row)
    target = f"scatter/{name}.parquet"
    with folder.writing(target) as draft, pq.ParquetWriter(draft, table.schema, compression="zstd") as writer:
        for cell in sorted(rows_of):
            writer.write_table(table.take(rows_of[cell]), row_group_size=ROW_GROUP)
    return Outcome(outputs=(folder.record(target, rows=table.num_rows),))


def sort_cell(folder: Folder, name: str, cell: int, scattered: Sequence[str]) -> Outcome:
    """Gather one cell from all scattered files and write it in the order of its keys."""
    table = pa.concat_tables(read_table(folder, shard, filters=[(CELL, "=", cell)]) for shard in scattered)
    # Equal keys are equal ids; url and source only order the copies of a document that is in the list twice.
    columns = [table[column].to_pylist() for column in (KEY, "id", "url", "source")]
    sort_keys = [(key, document, url, origin or "") for key, document, url, origin in zip(*columns, strict=True)]
    order = sorted(range(table.num_rows), key=sort_keys.__getitem__)
    output = table.take(pa.array(order, pa.int64())).drop_columns([CELL, KEY])
    record = write_table(folder, f"{name}.parquet", output.combine_chunks())
    return Outcome(outputs=(record,), seen=table.num_rows, kept=table.num_rows)
