"""Fetches of single pages and whole downloads from the misbehaving site, without pauses by default."""

import asyncio
from typing import Any

from gpt2train.store.manifest import Folder, Manifest, need_manifest
from tasks.blacklist.step import URLS
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.download.fetch import Fetcher
from tasks.download.ledger import Fetched, ledgers_of
from tasks.download.step import DownloadSettings, download
from tasks.download.warc import Page
from tasks.sources.index import read_pages
from tests.tasks.corpus import Inline, shards_of
from tests.tasks.web_server import Site

# The request for tdmrep.json is left to the tests of the consent signals: others count requests.
QUICK = {
    "delay": 0.0,
    "per_host": 8,
    "backoff": 0.0,
    "deadline": 60.0,
    "max_wire_bytes": 100_000,
    "max_bytes": 2**23,
    "consent": {"enabled": False},
}


def make_settings(**changes: object) -> DownloadSettings:
    return DownloadSettings.model_validate({**QUICK, "allow_private": ("127.0.0.0/8",), **changes})


def fetch(site: Site, urls: list[str], **changes: object) -> list[Fetched]:
    async def run() -> list[Fetched]:
        async with Fetcher(make_settings(**changes), {"*.test": site.address}) as fetcher:
            return await asyncio.gather(*(fetcher.fetch(url, "list") for url in urls))

    return asyncio.run(run())


def make_urls(root: Folder, shards: list[list[str]]) -> Manifest:
    rows = [[{"url": url, "source": "list.txt"} for url in shard] for shard in shards]
    return shards_of(root, rows, "blacklist", URLS, "urls")


def run(root: Folder, site: Site, shards: list[list[str]], workers: int = 1, **changes: Any) -> Manifest:
    with Runner(workers) as runner:
        settings = make_settings(**changes)
        return download(root, make_urls(root, shards), settings, runner, {"*.test": site.address})


def run_again(
    root: Folder,
    address: str,
    runner: Runner | None = None,
    retry_failed: bool = False,
    refresh: bool = False,
    **changes: Any,
) -> Manifest:
    urls, settings = need_manifest(root / "urls"), make_settings(**changes)
    how = {"retry_failed": retry_failed, "refresh": refresh}
    return download(root, urls, settings, runner or Inline(1), {"*.test": address}, **how)


def pages_of(root: Folder, made: Manifest) -> list[Page]:
    return [page for record in made.outputs for page in read_pages(root / "pages", record.name)]


def ledger_of(root: Folder, made: Manifest) -> list[dict[str, Any]]:
    return [row for record in ledgers_of(made.outcome.audit) for row in read_rows(root / "pages", record.name)]
