"""Captures of a domain in Common Crawl, by the CDX API of its index (https://index.commoncrawl.org/).

The answers are lines of JSON; each names the archive, the first byte and the length of a record.
"""

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa

from gpt2train.errors import RunError
from tasks.core.document import strip_unstorable
from tasks.discover.found import FoundUrls
from tasks.discover.settings import DiscoverSettings
from tasks.download.ledger import Fetched
from tasks.download.mime import HTML_TYPES
from tasks.download.response_body import FetchRejectedError

if TYPE_CHECKING:
    from tasks.discover.session import Session  # imports aiohttp (0.3 s)

CAPTURES = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("crawl", pa.string(), nullable=False),
        pa.field("timestamp", pa.string(), nullable=False),  # YYYYMMDDhhmmss
        pa.field("filename", pa.string(), nullable=False),  # of the archive, below the archive server
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
    ]
)
MAX_RECORD = 8 * 2**20  # bytes of a record, compressed
MAX_PAGES = 10_000  # of one answer
MALFORMED = (ValueError, LookupError, TypeError, RecursionError, OverflowError)  # of JSON: `Infinity` has no int
_CRAWL = re.compile(r"[\w.-]{1,60}", re.ASCII)
_NAME = re.compile(r"(?!.*\.\.)[\w][\w./=-]{0,300}\.warc\.gz", re.ASCII)
_TIME = re.compile(r"\d{14}", re.ASCII)


async def find_crawls(session: "Session", settings: DiscoverSettings) -> tuple[str, ...]:
    """Return the crawls to search: those of the settings, else the newest one that the server lists.

    Raises:
        RunError: The server cannot be reached, or lists none.
    """
    if settings.crawls:
        return settings.crawls
    address = f"{settings.index_server}/collinfo.json"
    page = await session.fetch(address)
    try:
        listed = json.loads(page.body or b"")
        crawl = listed[0]["id"]
        if isinstance(crawl, str) and _CRAWL.fullmatch(crawl):
            return (crawl,)
    except MALFORMED:
        pass
    detail = f"{page.reason}: {page.detail}" if page.reason else "it is not the list of crawls that was expected"
    raise RunError(f"{address}: {detail}; name a crawl with discover.crawls, or check discover.index_server")


async def find_captures(
    session: "Session", crawls: tuple[str, ...], found: FoundUrls, settings: DiscoverSettings
) -> list[dict[str, Any]]:
    """Return the captures of HTML pages of a domain, sorted by URL; of several of one URL the newest.

    Raises:
        RunError: The index server failed. An answer in part would make a corpus that depends on its faults.
    """
    newest: dict[str, dict[str, Any]] = {}
    for crawl in crawls:
        address = f"{settings.index_server}/{crawl}-index"
        name = found.domain.name
        query = {"url": f"*.{name}" if settings.subdomains else f"{name}/*", "output": "json", "filter": "=status:200"}
        number = await _page_count(session, f"{address}?{urlencode({**query, 'showNumPages': 'true'})}")
        for index in range(number):
            page = await session.fetch(f"{address}?{urlencode({**query, 'page': index})}")
            for line in _answer(page).splitlines():
                try:
                    row = _capture(line, crawl, found)
                except FetchRejectedError as error:
                    found.reject(line[:200].decode("utf-8", "replace"), page.url, error.reason, error.detail)
                    continue
                if row["timestamp"] >= newest.get(row["url"], {"timestamp": ""})["timestamp"]:
                    newest[row["url"]] = row
            if len(newest) >= settings.max_captures:
                break
    rows = [newest[url] for url in sorted(newest)]
    for row in rows[settings.max_captures :]:
        found.reject(row["url"], row["filename"], "max_captures", f"more than {settings.max_captures:,}")
    return rows[: settings.max_captures]


def _answer(page: Fetched) -> bytes:
    """Return the body of an answer; empty if the index has no capture, which is a 404.

    Raises:
        RunError: The server failed.
    """
    if page.reason == "not_found":
        return b""
    if page.body is None:
        raise RunError(f"{page.url}: {page.reason}: {page.detail}; run again, or check discover.index_server")
    return page.body


async def _page_count(session: "Session", address: str) -> int:
    body = _answer(await session.fetch(address))
    try:
        found = json.loads(body or b"0")
        number = int(found["pages"] if isinstance(found, dict) else found)
        if number < 0:
            raise ValueError("negative")
        return min(MAX_PAGES, number)
    except MALFORMED as error:
        raise RunError(f"{address}: not the number of pages that was expected; check discover.index_server") from error


def _capture(line: bytes, crawl: str, found: FoundUrls) -> dict[str, Any]:
    try:
        row = json.loads(line)
        url, name, time = str(row["url"]), str(row["filename"]), str(row["timestamp"])
        offset, length = int(row["offset"]), int(row["length"])
    except MALFORMED as error:
        raise FetchRejectedError("malformed", "not a line of a CDX answer") from error
    if not _NAME.fullmatch(name) or not _TIME.fullmatch(time) or not 0 <= offset < 2**53:
        raise FetchRejectedError("malformed", f"{name[:100]!r}, {time[:20]!r}, {offset}")
    if not 0 < length <= MAX_RECORD:
        raise FetchRejectedError("too_large", f"{length:,} bytes, at most {MAX_RECORD:,} allowed")
    if (kind := str(row.get("mime-detected") or row.get("mime") or "")) not in HTML_TYPES:
        raise FetchRejectedError("content_type", kind[:60])
    if str(row.get("status", "200")) != "200":
        raise FetchRejectedError("http_status", str(row["status"])[:20])
    place = found.add_capture(url)
    fields = {"url": strip_unstorable(place), "domain": found.domain.name, "crawl": crawl, "timestamp": time}
    return {**fields, "filename": name, "offset": offset, "length": length}
