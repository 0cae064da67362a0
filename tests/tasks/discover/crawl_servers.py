"""Index and archive of Common Crawl on the test server."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tests.tasks.sources.archives import response
from tests.tasks.web_server import Handler, Site

NAME = "crawl-data/CC-MAIN-2024-10/segments/1.2/warc/CC-1.warc.gz"


@dataclass
class Crawl:
    """Servers of one crawl.

    Attributes:
        site: the web server that answers for both.
        archive: bytes of the archive.
        lines: rows of the index, two answers of at most two; tests may change them.
    """

    site: Site
    archive: bytes
    lines: list[object]


def capture(url: str, offset: int, length: int, **changes: object) -> dict[str, object]:
    """A row of the index."""
    found = {"url": url, "timestamp": "20240301000000", "mime": "text/html", "mime-detected": "text/html"}
    place = {"status": "200", "filename": NAME, "offset": str(offset), "length": str(length)}
    return {**found, **place, **changes}


def serve_crawl(site: Site, pages: Mapping[str, bytes]) -> Crawl:
    """Serve the pages as a crawl."""
    records = [response(0, body).replace(b"http://a.example/0", url.encode()) for url, body in pages.items()]
    crawl = Crawl(site, b"", [])
    for url, record in zip(pages, map(gzip.compress, records), strict=True):
        crawl.lines.append(capture(url, len(crawl.archive), len(record)))
        crawl.archive += record

    def ranges(h: Handler) -> None:
        first, last = map(int, h.headers["Range"].removeprefix("bytes=").split("-"))
        h.answer(crawl.archive[first : last + 1], "binary/octet-stream", 206)

    def cdx(h: Handler) -> None:
        if "showNumPages" in h.path:
            h.answer(json.dumps({"pages": 2, "pageSize": 5, "blocks": 2}).encode(), "application/json")
            return
        some = crawl.lines[:2] if h.path.endswith("page=0") else crawl.lines[2:]
        h.answer("\n".join(json.dumps(line) for line in some).encode(), "text/x-ndjson")

    site.handlers |= {
        "/collinfo.json": lambda h: h.answer(b'[{"id": "CC-MAIN-2024-10"}, {"id": "CC-MAIN-2023-50"}]'),
        "/CC-MAIN-2024-10-index": cdx,
        f"/{NAME}": ranges,
    }
    return crawl
