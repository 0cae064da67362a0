"""The download step: URL shards -> WARC shards and a ledger.

    pages/part-00000.warc.gz                the pages, in the order of the URL list
    pages/ledger/part-00000.parquet         one row per URL: request, response, reason of a failure
    pages/rejected/part-00000.parquet       the URLs without a page, with their reasons
    pages/hosts.parquet                     one row per host: pages, failures, most frequent reason, time
    pages/consent.parquet                   one row per host and signal or license: pages, and those dropped for it
    pages/refresh/                          changes by URL and revisit records of the last refresh: `refresh.py`
    pages/_journal/                         fetched pages of the shards in flight

A batch is one URL shard. Several batches are in flight in one event loop, which enforces the limits per host exactly.
Two runs may fetch different bytes: the manifest's `content` is a hash of the kept pages, without times, so that the
fingerprints of later steps depend on the pages.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, read_manifest
from tasks.core.forgotten import read_forgotten
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.core.step import Step
from tasks.download.journal import Journal, clear_journals, journal_folder, remove_committed_journals
from tasks.download.settings import DownloadSettings
from tasks.download.shard_writer import finish, write_shard

log = logging.getLogger("gpt2train")

if TYPE_CHECKING:
    from tasks.download.crawl import Crawler


def download(
    root: Folder,
    urls: Manifest,
    settings: DownloadSettings,
    runner: Runner,
    connect_to: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    refresh: bool = False,
) -> Manifest:
    """Fetch each URL of the list politely, with bounded time and size, and from public addresses only.

    `connect_to` maps a host pattern to the `address:port` to connect to instead, as curl's `--connect-to`. It is not
    part of the fingerprint, and the address must be public or in `settings.allow_private`. `retry_failed` fetches
    again the pages of a finished download that failed for a temporary reason. `refresh` asks for all pages again
    and keeps those of the earlier download that have not changed, also if the list of URLs has changed.

    Raises:
        RunError: No page could be fetched; the message has the counts of the reasons.
    """
    step = Step(
        root,
        "download",
        version=9 if settings.consent.enabled else 8,  # 8: several codings, the base of a refresh
        parameters=settings.parameters,
        inputs={"blacklist": urls},
        folder="pages",  # no `packages`: another release of the HTTP client must not repeat the download
    )
    if refresh and runner.is_dry_run:
        step.fingerprint, step.inputs = "", {}  # the dry run shows the step as one that will run
    earlier = read_manifest(step.folder) if refresh and not runner.is_dry_run else None
    if earlier is not None:  # may its pages stay, maybe for other URLs?
        made = (earlier.step, earlier.version, earlier.parameters)
        if made != (step.name, step.version, step.parameters):
            log.warning(
                "the settings or the rules of the download have changed since the last one: all pages are fetched again"
            )
            earlier = None
        elif not step.has_files_of(earlier):
            earlier = None
    done = None
    if earlier is not None:
        runner.prepare(step)
    elif done := runner.finished(step):
        clear_journals(step.folder, "part-*")  # left by a run that was killed after the manifest; a retry's are kept
        if not (retry_failed and done.outcome.facts.get("retryable")):
            return done
    from tasks.download.crawl import Crawler  # imports aiohttp (0.3 s), which workers that only read pages never need
    from tasks.download.refresh import refresh as ask_again
    from tasks.download.refresh import retry

    forgotten, at_once = read_forgotten(root), settings.shards_at_once
    with Crawler(settings, connect_to or {}, runner.stopping, runner.advance, forgotten) as crawler:
        if earlier is not None:
            return ask_again(step, earlier, urls, runner, crawler, at_once)
        if done:
            return retry(step, done, runner, crawler, at_once)
        args = (root / urls.folder, crawler, step.fingerprint)
        names = [record.name for record in urls.outputs]
        rows = [record.rows or 0 for record in urls.outputs]
        batches = runner.batches(step, "part", names, download_shard, *args, where="thread", at_once=at_once, rows=rows)
    return finish(step, Outcome.total(batches))


def download_shard(folder: Folder, name: str, shard: str, urls: Folder, crawler: "Crawler", key: str) -> Outcome:
    """Fetch one URL shard and write its pages, ledger and rejected rows."""
    pending = [(index, row["url"], row["source"]) for index, row in enumerate(read_rows(urls, shard))]
    remove_committed_journals(folder)
    with Journal(journal_folder(folder) / name, key, [url for _, url, _ in pending]) as journal:
        crawler.fetch(name, [item for item in pending if item[0] not in journal.done], journal)
        rows = journal.rows()
        return write_shard(folder, name, [row for row, _, _ in rows], (journal.page(*at) for _, *at in rows))
