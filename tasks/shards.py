"""Parquet shards of documents and of rejected rows.

Documents: zstd-3, row groups of 1,024, one schema that grows by columns from step to step. Rejected rows keep what
identifies them (`id`, `url`, `source`), a reason code, a detail, and the head of the text for the report.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import RunError
from tasks.steps import Outcome
from tasks.storage import FileRecord, Folder

DOCUMENT = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # content hash of url + text, hex
        pa.field("url", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("date", pa.string()),
        pa.field("language_hint", pa.string()),  # as the page states it, ISO 639
        pa.field("source", pa.string()),  # the list, archive or file that named it
    ]
)
CLEAN = pa.schema(
    [
        *DOCUMENT,
        pa.field("language", pa.string()),
        pa.field("tokens", pa.int32()),  # as counted by the length test
        pa.field("split", pa.string()),  # train, valid or test: a seeded hash of the text
    ]
)
REJECTED = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("url", pa.string()),
        pa.field("source", pa.string()),
        pa.field("reason", pa.string(), nullable=False),  # a code: lower case, underscores
        pa.field("detail", pa.string()),  # what was found and what was expected
        pa.field("text", pa.large_string()),  # the first EXCERPT characters, for the report
    ]
)
EXCERPT = 300
ROW_GROUP = 1024


def write_rows(folder: Folder, name: str, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> FileRecord:
    """Write rows as one Parquet file, whole or not at all; the bytes depend on the rows alone."""
    return write_table(folder, name, pa.Table.from_pylist(list(rows), schema=schema))


def write_table(folder: Folder, name: str, table: pa.Table) -> FileRecord:
    """Write a table as one Parquet file, whole or not at all."""
    with folder.writing(name) as draft:
        pq.write_table(table, draft, compression="zstd", compression_level=3, row_group_size=ROW_GROUP)
    return folder.record(name, rows=table.num_rows)


def read_table(folder: Folder, name: str, columns: list[str] | None = None) -> pa.Table:
    """Read one Parquet file.

    Raises:
        RunError: it is damaged; the message names it.
    """
    try:
        with folder.open(name) as file:
            return pq.read_table(file, columns=columns)
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise RunError(f"{folder.url}/{name} is not the Parquet file expected: {error}") from error


def read_rows(folder: Folder, name: str, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of one Parquet file as dicts, in order."""
    for batch in read_table(folder, name, columns).to_batches(max_chunksize=ROW_GROUP):
        yield from batch.to_pylist()


def in_groups(records: Sequence[FileRecord], most_rows: int, most_bytes: int, most_groups: int) -> list[range]:
    """Cut shards into groups of neighbours, by their rows and bytes alone.

    Args:
        records: the shards.
        most_rows: in a group.
        most_bytes: in a group. A shard that alone is larger is a group of its own.
        most_groups: about so many at most: from there on the groups grow.

    Returns:
        Places of the shards of each group; one group at least.
    """
    most_rows = max(most_rows, -(-sum(record.rows or 0 for record in records) // most_groups))
    most_bytes = max(most_bytes, -(-sum(record.bytes for record in records) // most_groups))
    groups: list[range] = []
    start = rows = size = 0
    for place, record in enumerate(records):
        if place > start and (rows + (record.rows or 0) > most_rows or size + record.bytes > most_bytes):
            groups.append(range(start, place))
            start, rows, size = place, 0, 0
        rows += record.rows or 0
        size += record.bytes
    return [*groups, range(start, len(records))]


def rejected_row(row: dict[str, Any], reason: str, detail: str = "") -> dict[str, Any]:
    """A row for the rejected twin of a shard."""
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
    """Write a batch's kept rows and its rejected twin `rejected/<name>`, and say what was done."""
    outputs = (write_rows(folder, name, kept, schema),)
    dropped = (write_rows(folder, f"rejected/{name}", rejected, REJECTED),) if rejected else ()
    return Outcome(
        outputs=outputs,
        rejected=dropped,
        seen=len(kept) + len(rejected),
        kept=len(kept),
        reasons=dict(sorted(Counter(row["reason"] for row in rejected).items())),
        facts=facts or {},
    )
