"""Fetches of single pages and whole downloads from the misbehaving site, without pauses by default."""

import asyncio
from typing import Any

from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.blacklist.step import URLS
from tasks.core.runner import Runner
from tasks.core.shards import write_rows
from tasks.core.step import Step
from tasks.download.fetch import Fetcher
from tasks.download.ledger import Fetched
from tasks.download.step import DownloadSettings, download
from tests.tasks.web_server import Site

# The request for tdmrep.json is left to the tests of the consent signals: others count requests.
QUICK = {
    "delay": 0.0,
    "per_host": 8,
    "backoff": 0.0,
    "deadline": 10.0,
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
    step = Step(root, "blacklist", version=1, parameters={}, inputs={}, folder="urls")
    records = tuple(
        write_rows(step.folder, f"part-{n:05d}.parquet", [{"url": u, "source": "list.txt"} for u in shard], URLS)
        for n, shard in enumerate(shards)
    )
    return step.commit(Outcome(outputs=records))


def run(root: Folder, site: Site, shards: list[list[str]], workers: int = 1, **changes: Any) -> Manifest:
    with Runner(workers) as runner:
        settings = make_settings(**changes)
        return download(root, make_urls(root, shards), settings, runner, {"*.test": site.address})
