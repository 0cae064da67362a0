"""The download as a step: URL shards in, WARC shards and a ledger out.

    pages/part-00000.warc.gz                the pages, in the order of the URL list
    pages/ledger/part-00000.parquet         one row a URL: what was asked, what came, why it was not kept
    pages/rejected/part-00000.parquet       the URLs without a page, with their reasons
    pages/hosts.parquet                     one row a host: its pages, how many failed and of what, the time it took
    pages/_journal/                         what is fetched of the shards in flight

A batch is one URL shard. Several are in flight over one event loop, which keeps to the limits per host exactly. Two
runs may fetch different bytes: the manifest's content is the hash of what was kept, without times, so that later steps
go by what came.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.download.journal import Journal, clear_journals, journal_folder, remove_journal
from tasks.download.parts import finish, write_part
from tasks.download.settings import DownloadSettings
from tasks.runner import Runner
from tasks.shards import read_rows
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

if TYPE_CHECKING:
    from tasks.download.crawl import Crawler


def download(
    root: Folder,
    urls: Manifest,
    settings: DownloadSettings,
    runner: Runner,
    connect_to: Mapping[str, str] | None = None,
    retry_failed: bool = False,
) -> Manifest:
    """Fetch each URL of the list: politely, within bounds, and from public addresses only.

    Args:
        connect_to: host pattern -> `address:port` to connect to instead, as curl's `--connect-to`; no part of the
            fingerprint. The address must be public or lie in `settings.allow_private`.
        retry_failed: ask once more for the pages of a finished download that failed for a reason that may pass.

    Raises:
        RunError: not one page could be fetched; the message counts the reasons.
    """
    step = Step(
        root,
        "download",
        version=2,
        parameters=settings.parameters,
        inputs={"blacklist": urls},
        folder="pages",
        packages=("aiohttp", "protego", "warcio"),
    )
    done = runner.finished(step)
    if done:
        clear_journals(step.folder, "part-*")  # of a run that was killed after the manifest; not those of a retry
    if done and not (retry_failed and done.outcome.facts.get("retryable")):
        return done
    from tasks.download.crawl import Crawler  # aiohttp's import costs workers that only read pages 0.3 s

    with Crawler(settings, connect_to or {}, runner.stopping, runner.advance) as crawler:
        if done:
            from tasks.download.retry import retry

            return retry(step, done, runner, crawler, settings.shards_at_once)
        given = (root / urls.folder, crawler, step.fingerprint)
        names = [record.name for record in urls.outputs]
        rows = [record.rows or 0 for record in urls.outputs]
        at_once = settings.shards_at_once
        batches = runner.batches(step, "part", names, download_part, *given, where="thread", at_once=at_once, rows=rows)
    return finish(step, Outcome.total(batches))


def download_part(folder: Folder, name: str, shard: str, urls: Folder, crawler: "Crawler", key: str) -> Outcome:
    """Fetch one URL shard and commit its pages, ledger and rejected rows."""
    wanted = [(index, row["url"], row["source"]) for index, row in enumerate(read_rows(urls, shard))]
    _tidy(folder)
    with Journal(journal_folder(folder) / name, key, [url for _, url, _ in wanted]) as journal:
        crawler.fetch(name, [item for item in wanted if item[0] not in journal.done], journal)
        rows = journal.rows()
        return write_part(folder, name, [row for row, _, _ in rows], (journal.page(*at) for _, *at in rows))


def _tidy(folder: Folder) -> None:
    """Remove the journals of shards that are committed."""
    journals = journal_folder(folder)
    for path in journals.glob("*.rows"):
        if folder.size(f"_batches/{path.stem}.json") is not None:
            remove_journal(journals, path.stem)
