"""Put documents in a random order that depends on their ids and a seed alone.

The order is the order of `blake2b(seed, id)`: an exact uniform permutation, the same for every cut into shards and
every number of workers. Two passes, after DCLM's tokshuf: scatter each document to the cell that its key falls into,
then sort inside a cell, which fits in memory. Writes `shuffled/part-00000.parquet`, one file a cell, schema unchanged.

The first pass writes a file for each group of shards, in which each cell has row groups of its own, and each cell then
reads its row groups of every file: groups x cells small reads. Groups hold 32 MiB of Parquet and cells 8,192 documents
until that would make more than 2,048 groups or 1,024 cells; from there on they grow, cells up to 256 MiB (some 0.7 GB
of text), after which there are more of them. Both are counted in bytes, so large documents make cells of fewer rows.
A billion documents of 2 kB are 2,048 groups, 3,000 cells and six million reads of 120 kB.
"""

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.shards import ROW_GROUP, in_groups, read_table, write_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

CELL, KEY = "_cell", "_key"
MOST_CELLS = 1024
GROUP_ROWS, GROUP_BYTES, MOST_GROUPS = 1 << 16, 32 << 20, 2048


class ShuffleSettings(Settings):
    """How documents are shuffled."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    """Another seed, another order."""
    rows_per_cell: int = Field(default=8192, ge=1, le=2**22)
    """Documents, on average, that are sorted in memory at a time and make one output file, as long as that makes no
    more than 1,024 files. The order stays the same."""
    bytes_per_cell: int = Field(default=256 << 20, ge=1)
    """Bytes of the documents' Parquet files, on average, that are sorted in memory at a time: about three times as
    much text. With large documents a cell then has fewer than `rows_per_cell`."""


def shuffle(root: Folder, documents: Manifest, settings: ShuffleSettings, runner: Runner) -> Manifest:
    """Shuffle all documents; every row goes on."""
    step = Step(root, "shuffle", version=2, parameters=settings, inputs={"documents": documents}, folder="shuffled")
    if done := runner.finished(step):
        return done
    records = documents.outputs
    if not records:
        return step.commit(Outcome())
    groups = [
        tuple(records[place].name for place in places)
        for places in in_groups(records, GROUP_ROWS, GROUP_BYTES, MOST_GROUPS)
    ]
    cells = count_cells(sum(r.rows or 0 for r in records), sum(r.bytes for r in records), settings)
    scattered = runner.batches(step, "scatter", groups, scatter_shards, root / documents.folder, settings.seed, cells)
    names = [record.name for outcome in scattered for record in outcome.outputs]
    return step.commit(Outcome.total(runner.batches(step, "part", range(cells), sort_cell, names)))


def count_cells(rows: int, size: int, settings: ShuffleSettings) -> int:
    """How many cells a corpus of so many documents and bytes is cut into."""
    by_rows = min(-(-rows // settings.rows_per_cell), MOST_CELLS)
    return max(1, by_rows, -(-size // settings.bytes_per_cell))


def shuffle_key(seed: int, document_id: str) -> bytes:
    """Place of a document in the order of a seed: 16 bytes, compared as bytes."""
    return hashlib.blake2b(document_id.encode(), digest_size=16, key=seed.to_bytes(8, "little")).digest()


def cell_of(key: bytes, cells: int) -> int:
    """Cell of a key. Cells are ranges of keys, so that one cell after the other is in order."""
    return (int.from_bytes(key[:8], "big") * cells) >> 64


def scatter_shards(folder: Folder, name: str, shards: Sequence[str], source: Folder, seed: int, cells: int) -> Outcome:
    """Rewrite some shards with their rows grouped by cell: no row group holds two, so a cell reads only its own."""
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
    """Gather one cell from all scattered shards and write it in the order of its keys."""
    parts = []
    for shard in scattered:
        with folder.open(shard) as file:
            parts.append(pq.read_table(file, filters=[(CELL, "=", cell)]))
    table = pa.concat_tables(parts)
    # Equal keys are equal ids; url and source only settle a list that holds the same document twice.
    columns = [table[column].to_pylist() for column in (KEY, "id", "url", "source")]
    places = [(key, document, url, origin or "") for key, document, url, origin in zip(*columns, strict=True)]
    order = sorted(range(table.num_rows), key=places.__getitem__)
    output = table.take(pa.array(order, pa.int64())).drop_columns([CELL, KEY])
    record = write_table(folder, f"{name}.parquet", output.combine_chunks())
    return Outcome(outputs=(record,), seen=table.num_rows, kept=table.num_rows)
