"""Sitemaps, feeds and pages on the test server, an index of Common Crawl, and discoveries from them."""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2train.store.manifest import Folder, Manifest
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.discover.domains import find_domains
from tasks.discover.step import CAPTURE_LISTS, DiscoverSettings, discover
from tests.tasks.download.fetch_helpers import make_settings
from tests.tasks.sources.archives import response
from tests.tasks.web_server import Handler, Site

NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def urlset(urls: Iterable[str]) -> bytes:
    entries = "".join(f"<url><loc>{url}</loc><lastmod>2024-01-02</lastmod></url>\n" for url in urls)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset {NAMESPACE}>{entries}</urlset>'.encode()


def index(urls: Iterable[str]) -> bytes:
    entries = "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls)
    return f"<sitemapindex {NAMESPACE}>{entries}</sitemapindex>".encode()


def serve(site: Site, path: str, body: bytes, kind: str = "application/xml") -> None:
    site.handlers[path] = lambda h: h.answer(body, kind)


def run(
    root: Path, site: Site, domains: list[str], workers: int = 2, refresh: bool = False, **settings: Any
) -> Manifest:
    with Runner(workers) as runner:
        return discover(
            Folder(root),
            find_domains(domains),
            DiscoverSettings.model_validate(settings),
            runner,
            make_settings(),
            {"*.test": site.address},
            refresh,
        )


def rows(root: Path, manifest: Manifest, captures: bool = False) -> list[dict[str, Any]]:
    names = [record.name for record in manifest.outputs if record.name.startswith(CAPTURE_LISTS) == captures]
    return [row for name in names for row in read_rows(Folder(root) / "discover", name)]


def urls(root: Path, manifest: Manifest) -> list[str]:
    return [row["url"] for row in rows(root, manifest)]


def rejected(root: Path, manifest: Manifest) -> list[tuple[str, str]]:
    files = [record.name for record in manifest.outcome.rejected]
    found = [row for name in files for row in read_rows(Folder(root) / "discover", name)]
    return [(row["url"], row["reason"]) for row in found]


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
    found = {"url": url, "timestamp": "20240301000000", "mime": "text/html", "mime-detected": "text/html"}
    place = {"status": "200", "filename": NAME, "offset": str(offset), "length": str(length)}
    return {**found, **place, **changes}


def serve_crawl(site: Site, pages: Mapping[str, bytes]) -> Crawl:
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
