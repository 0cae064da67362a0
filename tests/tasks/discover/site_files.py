"""Sitemaps, feeds and pages on the test server, and discoveries from it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpt2train.store.manifest import Folder, Manifest
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.discover.domains import find_domains
from tasks.discover.step import CAPTURE_LISTS, DiscoverSettings, discover
from tests.tasks.download.fetch_helpers import make_settings
from tests.tasks.web_server import Site

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
