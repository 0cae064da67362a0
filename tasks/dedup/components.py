"""Partition of the duplicates into parts that share no document, so that each part is clustered in bounded memory.

Clusters are connected components of the verified pairs and the exact copies. A union-find finds them: its parents lie
in a temporary file that is mapped into memory, 8 bytes for each document of a shard up to the last one that has a
duplicate, and edges are read a million at a time. The system may drop the pages of the file from memory.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Outcome
from tasks.dedup.document_index import ROW_MASK, Group, Numbers
from tasks.dedup.exact import EXACT

MAX_EDGES = 1 << 22  # pairs and copies that are clustered at a time: 1.7 GB
BATCH = 1 << 20  # edges in memory here
PAIRS = pa.schema([("first", pa.int64()), ("second", pa.int64()), ("jaccard", pa.float64()), ("accepted", pa.bool_())])

PartOf = Callable[[pa.Table], Numbers]  # part of each edge


def edge_parts(edges: int) -> int:
    """Return the number of parts for a number of pairs and copies; it depends on nothing else."""
    return 1 + edges // MAX_EDGES


def partition_edges(
    folder: Folder, name: str, parts: int, groups: Sequence[Group], exact: Sequence[str], pairs: Sequence[str]
) -> Outcome:
    """Divide the exact copies and the accepted pairs into parts with whole components.

    Writes `edges/exact-NNNNN.parquet` for each part, then `edges/pairs-NNNNN.parquet`; their rows keep their order.
    """
    from tasks.dedup import kernels

    starts = _first_places(folder, groups[-1].high >> 32, exact, pairs)
    with tempfile.TemporaryFile(prefix="gpt2train-components-") as file:
        parent = _parents(file, int(starts[-1]))
        for table in _all_batches(folder, exact, pairs):
            kernels.unite(parent, *_places(starts, table))

        def part_of(table: pa.Table) -> Numbers:
            return np.asarray(kernels.roots(parent, _places(starts, table)[0]) % parts)

        copied = _divide(folder, "exact", parts, _batches(folder, exact, EXACT), EXACT, part_of)
        near = _divide(folder, "pairs", parts, _batches(folder, pairs, PAIRS), PAIRS, part_of)
    return Outcome(outputs=(*copied, *near))


def _batches(folder: Folder, files: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the accepted edges of files, at most `BATCH` of them at a time; the first two columns are the ends."""
    for name in files:
        with folder.open(name) as file:
            for batch in pq.ParquetFile(file).iter_batches(BATCH, columns=schema.names):
                table = pa.Table.from_batches([batch])
                yield table.filter(table["accepted"]) if "accepted" in schema.names else table


def _all_batches(folder: Folder, exact: Sequence[str], pairs: Sequence[str]) -> Iterator[pa.Table]:
    return itertools.chain(_batches(folder, exact, EXACT), _batches(folder, pairs, PAIRS))


def _first_places(folder: Folder, shards: int, exact: Sequence[str], pairs: Sequence[str]) -> Numbers:
    """[shards + 1] place of the first document of each shard, when the documents up to the last in use are counted."""
    rows = np.zeros(shards, dtype=np.int64)
    for table in _all_batches(folder, exact, pairs):
        for column in table.columns[:2]:
            numbers = column.to_numpy()
            np.maximum.at(rows, numbers >> 32, (numbers & ROW_MASK) + 1)
    return np.concatenate([[0], np.cumsum(rows)])


def _places(starts: Numbers, table: pa.Table) -> list[Numbers]:
    ends = (column.to_numpy() for column in table.columns[:2])
    return [starts[numbers >> 32] + (numbers & ROW_MASK) for numbers in ends]


def _parents(file: IO[bytes], count: int) -> Numbers:
    """Return the parents of `count` documents, each its own, in a file."""
    if not count:
        return np.zeros(0, dtype=np.int64)
    parent = np.memmap(file, dtype=np.int64, mode="w+", shape=(count,))
    for start in range(0, count, BATCH):
        parent[start : start + BATCH] = np.arange(start, min(start + BATCH, count))
    return np.asarray(parent)


def _divide(
    folder: Folder, kind: str, parts: int, tables: Iterator[pa.Table], schema: pa.Schema, part_of: PartOf
) -> list[FileRecord]:
    """Write each edge to the file of its part."""
    names = [f"edges/{kind}-{part:05d}.parquet" for part in range(parts)]
    rows = [0] * parts
    with contextlib.ExitStack() as stack:
        drafts = [stack.enter_context(folder.writing(name)) for name in names]
        writers = [stack.enter_context(pq.ParquetWriter(draft, schema, use_dictionary=False)) for draft in drafts]
        for table in tables:
            own = part_of(table)
            for part in np.unique(own).tolist():
                found = table.filter(pa.array(own == part))
                rows[part] += len(found)
                writers[part].write_table(found)
    return [folder.record(name, rows=count) for name, count in zip(names, rows, strict=True)]
