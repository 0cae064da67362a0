"""Second stage of the tokenisation: merge the encoded parts of a split, in order, to token files of bounded size.

The rows of each file are planned first, with only counts in memory; then each file is merged separately by copying
bytes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.data.indexed import shard_name, write_index
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import read_table

SPLITS = ("train", "valid", "test")
COPY_BYTES = 1 << 22  # bytes copied at a time
ROW_GROUP = 1 << 16  # documents of a table in memory, and per row group
ENCODED = pa.schema([("doc_id", pa.string()), ("url", pa.string()), ("tokens", pa.int64())])
SIDECAR = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("doc_id", pa.string()), ("url", pa.string())])


class Slice(NamedTuple):
    """Rows of one encoded part that belong to one token file."""

    part: str  # file name without extension
    first_row: int
    rows: int | None  # None: all following rows
    first_token: int
    tokens: int


class Piece(NamedTuple):
    """Plan of one token file: its position in the split, and its slices of parts."""

    split: str
    number: int  # index of the file in its split
    of: int  # number of files of the split
    start: int  # number of tokens of the split before this file
    slices: tuple[Slice, ...]


def plan(folder: Folder, parts: Sequence[FileRecord], split: str, shard_tokens: int) -> list[Piece]:
    """Divide a split into files of about `shard_tokens`; a document belongs to the file of its first token.

    The plan depends on the documents and their order alone, not on their distribution over parts. A split without
    documents has one empty file.
    """
    records = [record for record in parts if record.name.endswith(f".{split}.bin")]
    cells: dict[int, list[Slice]] = {}
    starts: dict[int, int] = {}
    before = 0
    for record in records:
        part, total = record.name.removesuffix(".bin"), record.rows or 0
        if not total:
            continue
        first, last = before // shard_tokens, (before + total - 1) // shard_tokens
        if first == last:
            cuts = [(first, Slice(part, 0, None, 0, total))]
        else:
            cuts = _cut(
                part, read_table(folder, f"{part}.parquet", ["tokens"])["tokens"].to_numpy(), before, shard_tokens
            )
        for cell, piece in cuts:
            cells.setdefault(cell, []).append(piece)
            starts.setdefault(cell, before + piece.first_token)
        before += total
    if not cells:
        return [Piece(split, 0, 1, 0, ())]
    return [
        Piece(split, number, len(cells), starts[cell], tuple(cells[cell])) for number, cell in enumerate(sorted(cells))
    ]


def _cut(part: str, lengths: np.ndarray, before: int, shard_tokens: int) -> list[tuple[int, Slice]]:
    """Slices of a part that belongs to several files, with the index of each file."""
    ends = np.cumsum(lengths, dtype=np.int64)
    cells = (before + ends - lengths) // shard_tokens
    rows = [*np.flatnonzero(np.diff(cells, prepend=-1)).tolist(), len(lengths)]
    found = []
    for first, last in pairwise(rows):
        start = int(ends[first] - lengths[first])
        found.append((int(cells[first]), Slice(part, first, last - first, start, int(ends[last - 1]) - start)))
    return found


def join_part(folder: Folder, name: str, piece: Piece, dtype: str) -> Outcome:
    """Merge one file: `<split>/tokens….bin`, its `.idx`, and the table of its documents."""
    stem = f"{piece.split}/{shard_name('tokens', piece.number, piece.of)}"
    table = f"{piece.split}/{shard_name('documents', piece.number, piece.of)}.parquet"
    size, position = np.dtype(dtype).itemsize, piece.start
    lengths = [np.empty(0, dtype=np.int64)]
    with (
        folder.writing(table) as sidecar,
        pq.ParquetWriter(sidecar, SIDECAR, compression="zstd", compression_level=3) as writer,
    ):
        pending = SIDECAR.empty_table()
        for part in piece.slices:
            rows = read_table(folder, f"{part.part}.parquet").slice(part.first_row, part.rows)
            counts = rows["tokens"].to_numpy()
            ends = position + np.cumsum(counts, dtype=np.int64)
            columns = [pa.array(ends - counts), pa.array(ends), rows["doc_id"], rows["url"]]
            pending = pa.concat_tables([pending, pa.Table.from_arrays(columns, schema=SIDECAR)])
            while pending.num_rows >= ROW_GROUP:  # groups of equal size, independent of the parts
                writer.write_table(pending.slice(0, ROW_GROUP).combine_chunks())
                pending = pending.slice(ROW_GROUP)
            lengths.append(counts)
            position += part.tokens
        writer.write_table(pending.combine_chunks())
    with folder.writing(f"{stem}.bin") as draft, draft.open("wb") as joined:
        for part in piece.slices:
            with folder.open(f"{part.part}.bin") as file:
                file.seek(part.first_token * size)
                remaining = part.tokens * size
                while remaining:
                    block = file.read(min(remaining, COPY_BYTES))
                    joined.write(block)
                    remaining -= len(block)
    with folder.writing(f"{stem}.idx") as draft:
        write_index(draft, np.concatenate(lengths), dtype)
    documents, tokens = sum(map(len, lengths)), position - piece.start
    records = (
        folder.record(f"{stem}.bin", rows=tokens),
        folder.record(f"{stem}.idx", rows=documents),
        folder.record(table, rows=documents),
    )
    return Outcome(outputs=records, facts={f"{piece.split}_documents": documents, f"{piece.split}_tokens": tokens})
