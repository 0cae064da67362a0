"""Ledger of the download: one row per URL of the list, with its result."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tasks.core.shards import read_rows, rejected_row
from tasks.core.step import Outcome, canonical
from tasks.core.storage import FileRecord, Folder

LEDGERS = "ledger/"
LEDGER = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("final_url", pa.string()),
        pa.field("status", pa.string(), nullable=False),  # ok, failed
        pa.field("reason", pa.string(), nullable=False),  # a code; empty when ok
        pa.field("detail", pa.string()),
        pa.field("retryable", pa.bool_(), nullable=False),  # a later run may succeed: --retry-failed
        pa.field("http_status", pa.int32()),
        pa.field("content_type", pa.string()),
        pa.field("charset", pa.string()),
        pa.field("bytes", pa.int64(), nullable=False),  # of the decoded page
        pa.field("sha256", pa.string()),
        pa.field("ip", pa.string()),  # the address that answered
        pa.field("fetched_at", pa.string()),  # UTC, ISO 8601
        pa.field("elapsed_ms", pa.int64()),
        pa.field("attempts", pa.int32()),
    ]
)
CONTENT = ["url", "final_url", "reason", "content_type", "charset", "sha256"]  # columns that later steps depend on

Row = dict[str, Any]


def ledgers_of(audit: Iterable[FileRecord]) -> list[FileRecord]:
    """Return the ledgers among the audit files of a download, in order."""
    return [record for record in audit if record.name.startswith(LEDGERS)]


def content_of(folder: Folder, ledgers: Sequence[FileRecord]) -> str:
    """Return a hash of the fetched content as recorded in the ledgers, without times."""
    state = hashlib.blake2b(digest_size=16)
    for record in ledgers:
        for row in read_rows(folder, record.name, CONTENT):
            state.update(canonical([row[name] for name in CONTENT]) + b"\n")
    return state.hexdigest()


def counts_of(rows: Iterable[Row]) -> Outcome:
    """Sum ledger rows into an outcome with counts, reasons and bytes, without files."""
    reasons: Counter[str] = Counter()
    seen = size = retryable = 0
    for row in rows:
        seen += 1
        size += row["bytes"]
        retryable += row["retryable"]
        if row["reason"]:
            reasons[row["reason"]] += 1
    return Outcome(
        seen=seen,
        kept=seen - reasons.total(),
        reasons=dict(sorted(reasons.items())),
        facts={"bytes": size, "retryable": retryable},
    )


def rejected_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without a page in the schema of rejected rows."""
    return [rejected_row(row, row["reason"], row["detail"]) for row in rows if row["reason"]]
