"""The download as a step: URL shards in, WARC shards and a ledger out.

    pages/part-00000.warc.gz                the pages, in the order of the URL list
    pages/ledger/part-00000.parquet         one row a URL: what was asked, what came, why it was not kept
    pages/rejected/part-00000.parquet       the URLs without a page, with their reasons

A batch is one URL shard, one at a time, so that the limits per host hold exactly. Two runs may fetch different bytes:
the manifest's content is the hash of what was kept, without times, so that later steps go by what came.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from gpt2train.errors import RunError
from tasks.download.settings import DownloadSettings
from tasks.runner import Runner
from tasks.shards import REJECTED, read_rows, rejected_row, write_rows
from tasks.steps import Manifest, Outcome, Step, canonical
from tasks.storage import Folder

if TYPE_CHECKING:
    from tasks.download.hosts import HostMemory

LEDGER = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("final_url", pa.string()),
        pa.field("status", pa.string(), nullable=False),  # ok, failed
        pa.field("reason", pa.string(), nullable=False),  # a code; empty when ok
        pa.field("detail", pa.string()),
        pa.field("retryable", pa.bool_(), nullable=False),
        pa.field("http_status", pa.int32()),
        pa.field("content_type", pa.string()),
        pa.field("charset", pa.string()),
        pa.field("bytes", pa.int64(), nullable=False),  # of the decoded page
        pa.field("sha256", pa.string()),
        pa.field("fetched_at", pa.string()),  # UTC, ISO 8601
        pa.field("elapsed_ms", pa.int64()),
        pa.field("attempts", pa.int32()),
    ]
)
CONTENT = ["url", "final_url", "reason", "content_type", "charset", "sha256"]  # what later steps depend on


def download(
    root: Folder,
    urls: Manifest,
    settings: DownloadSettings,
    runner: Runner,
    connect_to: Mapping[str, str] | None = None,
) -> Manifest:
    """Fetch each URL of the list: politely, within bounds, and from public addresses only.

    Args:
        connect_to: host pattern -> `address:port` to connect to instead, as curl's `--connect-to`; no part of the
            fingerprint. The address must be public or lie in `settings.allow_private`.

    Raises:
        RunError: not one page could be fetched; the message counts the reasons.
    """
    step = Step(
        root,
        "download",
        version=1,
        parameters=settings,
        inputs={"blacklist": urls},
        folder="pages",
        packages=("aiohttp", "protego", "warcio"),
    )
    if done := runner.finished(step):
        return done
    from tasks.download.hosts import HostMemory  # aiohttp's import costs workers that only read pages 0.3 s

    names = [record.name for record in urls.outputs]
    given = (root / urls.folder, settings, dict(connect_to or {}), HostMemory(), runner.stopping)
    total = Outcome.total(runner.batches(step, "part", names, download_part, *given, where="thread", at_once=1))
    if not total.kept:
        step.forget_batches()  # or the next run would believe them
        counts = ", ".join(f"{reason} {count}" for reason, count in total.reasons.items())
        raise RunError(f"none of the {total.seen} pages could be fetched ({counts}); check the network and run again")
    return step.commit(total, content=content_of(step.folder, total))


def content_of(folder: Folder, outcome: Outcome) -> str:
    """Hash of what the ledgers say was fetched, times left out."""
    state = hashlib.blake2b(digest_size=16)
    for record in outcome.audit:
        for row in read_rows(folder, record.name, CONTENT):
            state.update(canonical([row[name] for name in CONTENT]) + b"\n")
    return state.hexdigest()


def download_part(
    folder: Folder,
    name: str,
    shard: str,
    urls: Folder,
    settings: DownloadSettings,
    connect_to: Mapping[str, str],
    memory: "HostMemory",
    stopping: threading.Event,
) -> Outcome:
    """Fetch one URL shard and commit its pages, ledger and rejected rows."""
    from tasks.download.crawl import crawl

    wanted = [(row["url"], row["source"]) for row in read_rows(urls, shard)]
    pages = f"{name}.warc.gz"
    with folder.writing(pages) as draft:
        rows = crawl(wanted, draft, settings, connect_to, memory, stopping)
    ledger = write_rows(folder, f"ledger/{name}.parquet", rows, LEDGER)
    dropped = [row for row in rows if row["reason"]]
    kept = len(rows) - len(dropped)
    rejected = [rejected_row(row, row["reason"], row["detail"]) for row in dropped]
    return Outcome(
        outputs=(folder.record(pages, rows=kept),),
        rejected=(write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else (),
        audit=(ledger,),
        seen=len(rows),
        kept=kept,
        reasons=dict(sorted(Counter(row["reason"] for row in dropped).items())),
        facts={"bytes": sum(row["bytes"] for row in rows)},
    )
