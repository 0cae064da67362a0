"""Parquet shards of documents and of rejected rows.

Documents: zstd level 3, row groups of 1,024 rows, one schema to which later steps add columns. Rejected rows keep their
identification (`id`, `url`, `source`), a reason code, a detail, and the beginning of the text for the report.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import RunError
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Outcome

DOCUMENT = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # content hash of url + text, hex
        pa.field("url", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("date", pa.string()),
        pa.field("language_hint", pa.string()),  # as the page states it, ISO 639
        pa.field("source", pa.string()),  # name of its list, archive or file
    ]
)
CLEAN = pa.schema(
    [
        *DOCUMENT,
        pa.field("language", pa.string()),
        pa.field("language_share", pa.float32()),  # of the kept languages in the text, 0 to 1
        pa.field("tokens", pa.int32()),  # as counted by the length filter
        pa.field("split", pa.string()),  # train, valid or test: a seeded hash of the text
    ]
)
REJECTED = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("url", pa.string()),
        pa.field("source", pa.string()),
        pa.field("reason", pa.string(), nullable=False),  # a code: lower case, underscores
        pa.field("detail", pa.string()),  # found and expected values
        pa.field("text", pa.large_string()),  # the first EXCERPT characters, for the report
    ]
)
EXCERPT = 300  # characters
ROW_GROUP = 1024  # rows
NUMBERS_GROUP = 1 << 16  # rows of numbers and hashes


def write_rows(folder: Folder, name: str, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> FileRecord:
    """Write rows atomically as one Parquet file; its bytes depend only on the rows."""
    return write_table(folder, name, pa.Table.from_pylist(list(rows), schema=schema))


def write_table(folder: Folder, name: str, table: pa.Table | Iterable[pa.Table]) -> FileRecord:
    """Write a table, or several of which one at a time is in memory, atomically as one Parquet file.

    The bytes are those of one table if all but the last have a multiple of `ROW_GROUP` rows.
    """
    tables = [table] if isinstance(table, pa.Table) else table
    return _write(folder, name, tables, ROW_GROUP, compression="zstd", compression_level=3)


def write_numbers(folder: Folder, name: str, table: pa.Table | Iterable[pa.Table]) -> FileRecord:
    """Write tables of numbers and hashes in the same way, in large row groups and without dictionaries."""
    tables = [table.combine_chunks()] if isinstance(table, pa.Table) else table
    return _write(folder, name, tables, NUMBERS_GROUP, compression="zstd", compression_level=1, use_dictionary=False)


def _write(folder: Folder, name: str, tables: Iterable[pa.Table], row_group: int, **options: Any) -> FileRecord:
    rest = iter(tables)
    first = next(rest)
    rows = 0
    with folder.writing(name) as draft, pq.ParquetWriter(draft, first.schema, **options) as writer:
        for table in itertools.chain([first], rest):
            writer.write_table(table, row_group_size=row_group)
            rows += len(table)
    return folder.record(name, rows=rows)


def read_table(
    folder: Folder, name: str, columns: list[str] | None = None, filters: list[tuple[str, str, Any]] | None = None
) -> pa.Table:
    """Read one Parquet file, or of it the rows that pass all filters `(column, operator, value)`.

    Raises:
        RunError: The file is damaged; the message names it.
    """
    # Threads of Arrow free what they have read after it was returned. If a file object of Python has read it, a process
    # that ends meanwhile aborts (5 of 12 on a busy machine): a local file is opened by Arrow.
    with _damage_named(folder, name), pa.OSFile(folder.path(name)) if folder.is_local else folder.open(name) as file:
        if filters is not None:
            return pq.read_table(file, columns=columns, filters=filters)
        with pq.ParquetFile(file, pre_buffer=True) as parquet:  # without Arrow's datasets, which take 0.1 s to import
            table = parquet.read(columns)
            return table if columns is None else table.select(columns)


@contextlib.contextmanager
def _damage_named(folder: Folder, name: str) -> Iterator[None]:
    """Turn the errors of a damaged Parquet file into a `RunError` that names it."""
    try:
        yield
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # of the file system or the object store; that of a damaged page is a plain one without a number
        raise RunError(f"{folder.url}/{name} is not the Parquet file expected: {error}") from error


def read_rows(folder: Folder, name: str, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of one Parquet file as dicts, in order."""
    for batch in read_table(folder, name, columns).to_batches(max_chunksize=ROW_GROUP):
        yield from batch.to_pylist()


def in_groups(records: Sequence[FileRecord], max_rows: int, max_bytes: int, max_groups: int) -> list[range]:
    """Partition shards into groups of consecutive ones, by their rows and bytes alone; return the indices of each.

    A shard of more than `max_bytes` is a group of its own. Beyond about `max_groups` groups, both other limits grow.
    There is at least one group.
    """
    max_rows = max(max_rows, -(-sum(record.rows or 0 for record in records) // max_groups))
    max_bytes = max(max_bytes, -(-sum(record.bytes for record in records) // max_groups))
    groups: list[range] = []
    start = rows = size = 0
    for index, record in enumerate(records):
        if index > start and (rows + (record.rows or 0) > max_rows or size + record.bytes > max_bytes):
            groups.append(range(start, index))
            start, rows, size = index, 0, 0
        rows += record.rows or 0
        size += record.bytes
    return [*groups, range(start, len(records))]


def rejected_row(row: dict[str, Any], reason: str, detail: str = "") -> dict[str, Any]:
    """Return a row of schema `REJECTED` for a dropped row."""
    text = row.get("text")
    return {
        "id": row.get("id"),
        "url": row.get("url"),
        "source": row.get("source"),
        "reason": reason,
        "detail": detail,
        "text": None if text is None else text[:EXCERPT],
    }


def commit_rows(
    folder: Folder,
    name: str,
    kept: Sequence[dict[str, Any]],
    rejected: Sequence[dict[str, Any]],
    schema: pa.Schema,
    facts: dict[str, int] | None = None,
) -> Outcome:
    """Write a batch's kept rows to `<name>` and its rejected rows to `rejected/<name>`, and return its outcome."""
    rejects = pa.Table.from_pylist(list(rejected), REJECTED)
    return commit_tables(folder, name, pa.Table.from_pylist(list(kept), schema), rejects, facts)


def commit_tables(
    folder: Folder, name: str, kept: pa.Table, rejected: pa.Table, facts: dict[str, int] | None = None
) -> Outcome:
    """Write tables as `commit_rows` writes rows; the rejected ones have schema `REJECTED`."""
    outputs = (write_table(folder, name, kept),)
    dropped = (write_table(folder, f"rejected/{name}", rejected),) if len(rejected) else ()
    return Outcome(
        outputs=outputs,
        rejected=dropped,
        seen=len(kept) + len(rejected),
        kept=len(kept),
        reasons=dict(sorted(Counter(rejected["reason"].to_pylist()).items())),
        facts=facts or {},
    )


def sample_texts(folder: Folder, names: Sequence[str], max_bytes: int) -> list[str]:
    """Read the beginnings of evenly spaced documents of shards; at most `max_bytes` in all, but for one per shard.

    The first rows of a shard may all be from one site, so they alone are no sample.
    """
    texts: list[str] = []
    for name in names:
        budget = max_bytes // len(names)
        for raw in _spaced_texts(folder, name):
            if raw:
                texts.append(raw[: min(budget, max_bytes // 16)].decode(errors="ignore"))
                budget -= len(raw)
            if budget <= 0:
                break
    return texts


def _spaced_texts(folder: Folder, name: str) -> Iterator[bytes]:
    """Yield the texts of some 64 evenly spaced rows of one shard; a row group is read when its first one is needed."""
    with _damage_named(folder, name), folder.open(name) as file, pq.ParquetFile(file) as shard:
        wanted = np.arange(0, shard.metadata.num_rows, max(1, shard.metadata.num_rows // 64))
        first = 0
        for group in range(shard.num_row_groups):
            rows = shard.metadata.row_group(group).num_rows
            here = wanted[(wanted >= first) & (wanted < first + rows)] - first
            if len(here):
                texts = shard.read_row_group(group, columns=["text"])["text"].take(here)
                yield from texts.cast(pa.large_binary()).to_pylist()
            first += rows
