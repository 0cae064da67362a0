"""Ledger of the download: one row per URL of the list, with its result."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Outcome, canonical
from tasks.core.forgotten import REASON, Forgotten, name_of
from tasks.core.shards import read_table

if TYPE_CHECKING:
    import aiohttp

    from tasks.download.consent.signals import Headers

LEDGERS = "ledger/"
LEDGER = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("final_url", pa.string()),  # the last URL that was requested
        pa.field("status", pa.string(), nullable=False),  # ok, failed
        pa.field("reason", pa.string(), nullable=False),  # a code; empty when ok
        pa.field("detail", pa.string()),  # found and expected values
        pa.field("retryable", pa.bool_(), nullable=False),  # a later run may succeed: --retry-failed
        pa.field("http_status", pa.int32()),  # of the last response; null without one
        pa.field("content_type", pa.string()),  # sniffed from the body if the server sent none
        pa.field("charset", pa.string()),
        pa.field("bytes", pa.int64(), nullable=False),  # of the decoded page
        pa.field("sha256", pa.string()),
        pa.field("ip", pa.string()),  # the address that answered
        pa.field("fetched_at", pa.string()),  # UTC, ISO 8601
        pa.field("elapsed_ms", pa.int64()),  # of the requests, without waits for the host's rate limit
        pa.field("attempts", pa.int32()),  # requests for the page, redirects not counted
        pa.field("content_language", pa.string()),  # of the HTTP header; this and the following: not in older ledgers
        pa.field("etag", pa.string()),  # validators of the page, for a refresh
        pa.field("last_modified", pa.string()),
        pa.field("fresh_until", pa.string()),  # time until which the server declared the page fresh (`freshness.py`)
    ]
)
CONSENT = pa.schema(  # further columns if the signals were looked for
    [
        pa.field("signals", pa.list_(pa.string())),  # against the use of the page, honoured or not
        pa.field("licenses", pa.list_(pa.string())),  # links to its licenses
    ]
)
CONTENT = ["url", "final_url", "reason", "content_type", "charset", "sha256"]  # columns that later steps depend on
LANGUAGE = "content_language"  # as does this one, which older ledgers do not have

Row = dict[str, Any]


@dataclass
class Fetched:
    """Result of fetching one URL: the columns of `LEDGER`, and the page if it is kept."""

    url: str
    source: str
    final_url: str = ""
    reason: str = ""
    detail: str = ""
    retryable: bool = False
    http_status: int | None = None
    content_type: str = ""
    charset: str | None = None
    content_language: str = ""  # Content-Language of the last response
    ip: str = ""
    body: bytes | None = field(default=None, repr=False)  # decoded page; None if it is not kept
    sha256: str = ""
    fetched_at: str = ""
    elapsed_ms: int = 0
    attempts: int = 0
    etag: str = ""  # ETag and Last-Modified of the page; empty if there is none that can be sent back
    last_modified: str = ""
    fresh_until: str = ""
    headers: "Headers | None" = field(default=None, repr=False)  # of the last response with status 200 or 304
    not_modified: bool = False  # the server confirmed the earlier page (304)
    is_fresh: bool = False  # the earlier page is still fresh and was not requested
    cookies: "aiohttp.CookieJar | None" = field(default=None, repr=False)  # of the hops of this page
    refreshed: bool = False  # a Refresh was followed
    request_headers: Mapping[str, str] = field(default_factory=dict)  # fields beside those of every request
    conditions: Mapping[str, str] = field(default_factory=dict)  # further fields for `conditions_url` alone
    conditions_url: str = ""  # the URL that the earlier page came from, after redirects
    fresh_url: str = ""  # the URL that need not be requested
    signals: tuple[str, ...] | None = None  # None if the signals are not looked for
    licenses: tuple[str, ...] | None = None

    def fail(self, reason: str, detail: str, retryable: bool = False) -> None:
        """Record the reason for dropping the page."""
        self.reason, self.detail, self.retryable = reason, detail, retryable
        self.body, self.sha256, self.not_modified, self.fresh_until = None, "", False, ""

    def row(self) -> Row:
        """Return the ledger row. Undecodable characters in what a server sent become question marks."""
        row = vars(self) | {"status": "failed" if self.reason else "ok", "bytes": len(self.body or b"")}
        for name in ("final_url", "detail"):
            row[name] = row[name].encode("utf-8", errors="replace").decode()
        return {name: row[name] for name in (*LEDGER.names, *(CONSENT.names if self.signals is not None else []))}


def schema_of(rows: Sequence[Row]) -> pa.Schema:
    """Return the schema of a ledger with these rows."""
    return pa.schema([*LEDGER, *CONSENT]) if rows and "signals" in rows[0] else LEDGER


def ledgers_of(audit: Iterable[FileRecord]) -> list[FileRecord]:
    """Return the ledgers among the audit files of a download, in order."""
    return [record for record in audit if record.name.startswith(LEDGERS)]


def content_of(folder: Folder, ledgers: Sequence[FileRecord], has_languages: bool = True) -> str:
    """Return a hash of the fetched content as recorded in the ledgers, without times.

    Content-Language did not count (`has_languages`) in the manifests of older releases.
    """
    state = hashlib.blake2b(digest_size=16)
    for record in ledgers:
        table = read_table(folder, record.name)
        names = [name for name in (*CONTENT, *([LANGUAGE] if has_languages else [])) if name in table.column_names]
        for batch in table.select(names).to_batches():
            for row in batch.to_pylist():
                language = row.pop(LANGUAGE, None)
                state.update(canonical([*row.values(), *([language] if language else [])]) + b"\n")
    return state.hexdigest()


def without_forgotten(rows: Iterable[Row], forgotten: Forgotten) -> list[Row]:
    """Return ledger rows in which those of forgotten pages are failures without their URL."""
    found = []
    for row in rows:
        if forgotten.matches_row(row):
            empty: Row = {name: [] if isinstance(value, list | tuple) else None for name, value in row.items()}
            # These say nothing about the page.
            kept = {name: row[name] for name in ("source", "elapsed_ms", "attempts") if name in row}
            url = row["url"] if forgotten.matches(row["url"]) else row.get("final_url") or ""
            failure = {"url": name_of(url), "final_url": "", "status": "failed", "reason": REASON, "detail": ""}
            nothing = {"retryable": False, "bytes": 0, "content_type": "", "sha256": "", "ip": ""}
            row = empty | kept | failure | nothing
        found.append(row)
    return found


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
