"""Rows and records of forgotten pages in the files of a download."""

import io
import zlib
from collections.abc import Sequence

from warcio.archiveiterator import ArchiveIterator

from tasks.core.forgotten import REASON, Forgotten, name_of
from tasks.download.ledger import Row

WARC_URLS = ("WARC-Target-URI", "X-List-URL", "WARC-Refers-To-Target-URI")
KEPT = ("source", "elapsed_ms", "attempts")  # columns of a forgotten row that say nothing about its page


def without_forgotten(rows: Sequence[Row], forgotten: Forgotten) -> list[Row]:
    """Return ledger rows with those of forgotten pages stripped."""
    return [stripped(row, forgotten) if forgotten.matches_row(row) else row for row in rows]


def stripped(row: Row, forgotten: Forgotten) -> Row:
    """Return the ledger row of a forgotten page: a failure without its URL."""
    empty: Row = {name: [] if isinstance(value, list | tuple) else None for name, value in row.items()}
    kept = {name: row[name] for name in KEPT if name in row}
    name = name_of(row["url"]) if forgotten.matches(row["url"]) else name_of(row.get("final_url") or "")
    failure = {"url": name, "final_url": "", "status": "failed", "reason": REASON, "detail": "", "charset": None}
    return empty | kept | failure | {"retryable": False, "bytes": 0, "content_type": "", "sha256": "", "ip": ""}


def is_forgotten(record: bytes, forgotten: Forgotten) -> bool:
    """Return True if a WARC record, a gzip member or plain, is of a forgotten page."""
    if not record:
        return False
    try:
        found = next(iter(ArchiveIterator(io.BytesIO(record))), None)
    except (zlib.error, ValueError, EOFError):
        return False
    return found is not None and forgotten.matches(*(found.rec_headers.get_header(name) for name in WARC_URLS))
