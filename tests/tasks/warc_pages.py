"""Archives of pages, as the download writes them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.download.warc import EMPTY, Page, encode_record


def make_page(body: bytes = b"<html><p>hello world</p></html>", **changes: Any) -> Page:
    fields = {
        **{"url": "http://a.example/", "final_url": "http://b.example/?q=ä", "content_type": "text/html"},
        **{"charset": "utf-8", "fetched_at": "2026-01-02T03:04:05Z", "source": "list.txt"},
    }
    return Page(**{**fields, "body": body, "sha256": hashlib.sha256(body).hexdigest(), **changes})


def write_pages(path: Path, pages: Iterable[Page]) -> int:
    """Write pages as one `.warc.gz` file and return their number.

    The bytes depend only on the pages: a record's id is a hash of its URL and content.
    """
    records = [encode_record(page) for page in pages]
    path.write_bytes(b"".join(records) or EMPTY)
    return len(records)
