"""Put documents in a random order that depends on their ids and a seed alone.

The order is the order of `blake2b(seed, id)`: an exact uniform permutation, the same for every cut into shards and
every number of workers. Two passes, after DCLM's tokshuf: scatter each document to the cell that its key falls into,
then sort inside a cell, which fits in memory. Writes `shuffled/part-00000.parquet`, one file a cell, schema unchanged.
"""

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.shards import ROW_GROUP, read_table, write_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

CELL, KEY = "_cell", "_key"


class ShuffleSettings(Settings):
    """How documents are shuffled."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    """Another seed, another order."""
    rows_per_cell: int = Field(default=8192, ge=1, le=2**22)
    """Documents, on average, that are sorted in memory at a time and make one output file. The order stays the same."""


def shuffle(root: Folder, documents: Manifest, settings: ShuffleSettings, runner: Runner) -> Manifest:
    """Shuffle all documents; every row goes on."""
    step = Step(root, "shuffle", version=1, parameters=settings, inputs={"documents": documents}, folder="shuffled")
    if done := runner.finished(step):
        return done
    shards = [record.name for record in documents.outputs]
    rows = sum(record.rows or 0 for record in documents.outputs)
    cells = max(1, -(-rows // settings.rows_per_cell))
    scattered = runner.batches(step, "scatter", shards, scatter_shard, root / documents.folder, settings.seed, cells)
    names = [record.name for outcome in scattered for record in outcome.outputs]
    return step.commit(Outcome.total(runner.batches(step, "part", range(cells), sort_cell, names)))


def shuffle_key(seed: int, document_id: str) -> bytes:
    """Place of a document in the order of a seed: 16 bytes, compared as bytes."""
    return hashlib.blake2b(document_id.encode(), digest_size=16, key=seed.to_bytes(8, "little")).digest()


def cell_of(key: bytes, cells: int) -> int:
    """Cell of a key. Cells are ranges of keys, so that one cell after the other is in order."""
    return (int.from_bytes(key[:8], "big") * cells) >> 64


def scatter_shard(folder: Folder, name: str, shard: str, source: Folder, seed: int, cells: int) -> Outcome:
    """Rewrite one shard with its rows grouped by cell: no row group holds two cells, so a cell reads only its own."""
    table = read_table(source, shard)
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
