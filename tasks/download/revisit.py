"""Comparison of a page with its earlier fetch, and the WARC record of a page that stands (revisit).

| answer | page | change |
| --- | --- | --- |
| none, as the page is still fresh (`skip_fresh`) | the earlier one stays | `fresh` |
| 304, or 200 with the same page | the earlier one stays | `unchanged` |
| 200 with another page | the new one | `changed`; `new` if there was none |
| busy, 5xx, time-out, no connection | the earlier one stays, with a note | `kept` |
| any other failure: 404, 410, robots.txt, a signal | leaves the corpus, with its reason | `gone` |
| any failure of a page that was not there before | none | `missing` |
"""

import re
from collections.abc import Mapping
from typing import Any

from tasks.download.ledger import Fetched, Row
from tasks.download.warc import encode, escaped, record_name

VALIDATORS = ("ETag", "Last-Modified")
MAX_VALIDATOR = 512  # characters
_SENDABLE = re.compile("[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
SERVER_SIGNALS = ("robots_ai_agent",)  # signals of a site's files alone: they are looked for at each refresh
RECORDED = ("Date", "ETag", "Last-Modified", "Content-Type", "Content-Language", "Cache-Control", "Expires", "Vary")
PROFILE = "http://netpreserve.org/warc/1.1/revisit/"
NOT_MODIFIED, IDENTICAL = "server-not-modified", "identical-payload-digest"


def checked_validator(value: str | None) -> str:
    """Return an ETag or Last-Modified if it can be sent back as it is, else nothing."""
    value = (value or "").strip()
    return value if len(value) <= MAX_VALIDATOR and _SENDABLE.fullmatch(value) else ""


def conditions_of(earlier: Row) -> dict[str, str]:
    """Return the header fields of a conditional request for an earlier page."""
    fields = {"If-None-Match": earlier.get("etag"), "If-Modified-Since": earlier.get("last_modified")}
    return {name: value for name, value in fields.items() if value}


def keeps_earlier(fetched: Fetched, earlier: Row | None) -> bool:
    """Return True if the earlier page stays in the corpus, with the bytes of its record."""
    if earlier is None or earlier["reason"]:
        return False
    if fetched.reason:  # a failure that says nothing about the page
        return fetched.retryable or fetched.reason == "client_error" or (fetched.http_status or 0) >= 500
    same = ("source", "final_url", "content_type", "charset", "content_language", "sha256")
    return fetched.not_modified or fetched.is_fresh or all(getattr(fetched, name) == earlier.get(name) for name in same)


def compared(fetched: Fetched, earlier: Row | None) -> Row:
    """Return the ledger row of a page at a refresh.

    Further keys: `change`; `keeps` (the earlier page stays); `note`, a failure for which it does; `revisit`, the
    answer that confirmed it.
    """
    row, had_page = fetched.row(), earlier is not None and not earlier["reason"]
    keeps = keeps_earlier(fetched, earlier)
    extra: Row = {"keeps": keeps, "earlier_sha256": earlier["sha256"] if earlier and had_page else None}
    if fetched.is_fresh and keeps:
        change = "fresh"
    elif fetched.reason:
        change = "kept" if keeps else "gone" if had_page else "missing"
        extra["note"] = f"{fetched.reason}: {fetched.detail}"
    else:
        is_same = fetched.not_modified or (earlier is not None and fetched.sha256 == earlier["sha256"])
        change = "new" if not had_page else "unchanged" if is_same else "changed"
        if earlier and change == "unchanged":
            extra["revisit"] = _revisit(fetched)
    if earlier and keeps:
        row = _kept_row(row, earlier, fetched)
    return row | extra | {"change": change}


def _kept_row(row: Row, earlier: Row, fetched: Fetched) -> Row:
    """Row of a page that stays: that of its fetch, with the signals and validators of today."""
    kept = {name: earlier.get(name) for name in row}
    if fetched.reason:
        return kept | {"detail": f"kept: {row['fetched_at']} {fetched.reason}: {row['detail']}"}
    kept["detail"] = ""
    has_page = not (fetched.not_modified or fetched.is_fresh)
    for name in ("etag", "last_modified"):
        stated = fetched.headers.getall(name.replace("_", "-"), []) if fetched.headers is not None else []
        found = row[name] if has_page else checked_validator(stated[0] if stated else "")
        kept[name] = found or ("" if has_page else kept[name])
    kept["fresh_until"] = row["fresh_until"]
    if "signals" in row and has_page:
        kept |= {"signals": row["signals"], "licenses": row["licenses"]}
    elif "signals" in row:  # a 304 says nothing about the tags of the page
        before = [name for name in kept["signals"] or () if name not in SERVER_SIGNALS]
        kept["signals"] = list(dict.fromkeys([*row["signals"], *before]))
        kept["licenses"] = list(dict.fromkeys([*(kept["licenses"] or ()), *row["licenses"]]))
    return kept


def _revisit(fetched: Fetched) -> dict[str, Any]:
    """Answer of the server, as far as the record of a revisit has it."""
    headers = fetched.headers
    fields = [(name, value) for name in RECORDED if headers for value in headers.getall(name, [])[:1]]
    return {
        "profile": NOT_MODIFIED if fetched.not_modified else IDENTICAL,
        "status": "304 Not Modified" if fetched.not_modified else "200 OK",
        "headers": [(name, value[:MAX_VALIDATOR].encode(errors="replace").decode()) for name, value in fields],
        "date": fetched.fetched_at,
        "ip": fetched.ip,
    }


def encode_revisit(earlier: Row, revisit: Mapping[str, Any]) -> bytes:
    """Encode a revisit as a gzip member with one WARC record, which refers to the record of the earlier page."""
    of = f"{escaped(earlier['url'])} {earlier['sha256']}"
    fields = {
        "WARC-Date": revisit["date"],
        "WARC-Profile": PROFILE + revisit["profile"],
        "WARC-Refers-To": record_name(of),
        "WARC-Refers-To-Target-URI": earlier["final_url"],
        "WARC-Refers-To-Date": earlier["fetched_at"],
        "WARC-Payload-Digest": f"sha256:{earlier['sha256']}",
        "X-List-URL": earlier["url"],
        "X-List-Source": earlier["source"] or "",
    }
    if revisit["ip"]:
        fields["WARC-IP-Address"] = revisit["ip"]
    if revisit["profile"] == IDENTICAL:
        fields["WARC-Truncated"] = "length"
    headers = [(name, escaped(value)) for name, value in revisit["headers"]]
    name = f"{of} revisit {revisit['date']}"
    return encode("revisit", earlier["final_url"], b"", name, fields, http=(revisit["status"], headers))
