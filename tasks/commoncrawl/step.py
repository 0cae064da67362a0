"""The commoncrawl step: captures that the discovery found -> WARC shards, by requests for byte ranges of the archives.

    commoncrawl/part-00000.warc.gz              pages in the form of the download
    commoncrawl/rejected/part-00000.parquet     captures without a page, with their reasons

A batch is a slice of one domain's captures. The consent signals of header and tags, as of the time of the crawl, are
honoured as in the download; Common Crawl has obeyed robots.txt for its own name, CCBot, then.
"""

import asyncio
import io
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.forgotten import REASON, forgotten_beside, name_of
from tasks.core.runner import Runner
from tasks.core.shards import REJECTED, read_table, rejected_row, write_rows
from tasks.core.step import Step
from tasks.discover.settings import DiscoverSettings
from tasks.discover.step import CAPTURE_LISTS
from tasks.download.response_body import FetchRejectedError
from tasks.download.settings import DownloadSettings
from tasks.download.warc import Page, encode_record, write_archive
from tasks.sources.archive_stream import ArchiveStream
from tasks.sources.archived_consent import check_consent
from tasks.sources.http_payload import page_of
from tasks.sources.warc_records import BrokenRecord, read_records

if TYPE_CHECKING:
    from tasks.discover.session import Session

SHARD_ROWS = 200  # captures of one batch
AT_ONCE = 8  # batches
Slice = tuple[str, int]  # list of captures, and its first row


def commoncrawl(
    root: Folder,
    found: Manifest,
    settings: DiscoverSettings,
    download: DownloadSettings,
    runner: Runner,
    connect_to: Mapping[str, str] | None = None,
) -> Manifest:
    """Fetch the captures of a discovery.

    Raises:
        RunError: No page could be fetched; the message has the counts of the reasons.
    """
    consent_settings = download.consent.model_dump(mode="json") if download.consent.enabled else None
    parameters = {"max_bytes": download.max_bytes, "max_ratio": download.max_ratio, "consent": consent_settings}
    step = Step(
        root, "commoncrawl", version=6 if consent_settings else 5, parameters=parameters, inputs={"discover": found}
    )
    if done := runner.finished(step):
        return done
    from tasks.discover.session import Session  # imports aiohttp (0.3 s)

    records = [record for record in found.outputs if record.name.startswith(CAPTURE_LISTS)]
    slices = [(record.name, first) for record in records for first in range(0, record.rows or 0, SHARD_ROWS)]
    with Session(download, connect_to or {}, runner.stopping, obey_robots=False) as session:
        args = (root / found.folder, settings.archive_server, download, session)
        batches = runner.batches(step, "part", slices, fetch_slice, *args, where="thread", at_once=AT_ONCE)
    total = Outcome.total(batches)
    if total.seen and not total.kept:
        raise RunError(
            f"none of the {total.seen} pages of Common Crawl could be fetched ({step.reasons_of(total)}); "
            "check discover.archive_server"
        )
    return step.commit(total)


def fetch_slice(
    folder: Folder, name: str, item: Slice, lists: Folder, server: str, settings: DownloadSettings, session: "Session"
) -> Outcome:
    """Fetch one slice of captures and write its pages."""
    table = read_table(lists, item[0]).slice(item[1], SHARD_ROWS)
    rows = table.to_pylist()

    async def fetch_all() -> list[Page | FetchRejectedError]:
        return await asyncio.gather(*(_fetch(session, server, row, settings) for row in rows))

    answers = session.run(fetch_all())
    if forgotten := forgotten_beside(folder):  # the captures of forgotten pages are not listed, but pages redirect
        for number, answer in enumerate(answers):
            if isinstance(answer, Page) and forgotten.matches(answer.url, answer.final_url):
                rows[number] = {**rows[number], "url": name_of(answer.url)}
                answers[number] = FetchRejectedError(REASON, "")
    failed = [error for error in answers if isinstance(error, FetchRejectedError) and error.retryable]
    if failed:  # the archives do not change: a page is missing because of the network alone
        raise RunError(f"{server}: {len(failed)} of {len(rows)} pages failed, the first by {failed[0]}; run again")
    pages = [page for page in answers if isinstance(page, Page)]
    rejected = [
        rejected_row({**row, "source": row["filename"]}, answer.reason, f"byte {row['offset']:,}: {answer.detail}")
        for row, answer in zip(rows, answers, strict=True)
        if isinstance(answer, FetchRejectedError)
    ]
    reasons = Counter(row["reason"] for row in rejected)
    dates = [page.fetched_at for page in pages]
    return Outcome(
        outputs=(write_archive(folder, f"{name}.warc.gz", dates, map(encode_record, pages)),),
        rejected=(write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else (),
        seen=len(rows),
        kept=len(pages),
        reasons=dict(sorted(reasons.items())),
        facts={"bytes": sum(len(page.body) for page in pages)},
    )


async def _fetch(
    session: "Session", server: str, row: Mapping[str, Any], settings: DownloadSettings
) -> Page | FetchRejectedError:
    """Fetch one capture: its page, or the reason for which there is none."""
    last = row["offset"] + row["length"] - 1
    answer = await session.fetch(f"{server}/{row['filename']}", {"Range": f"bytes={row['offset']}-{last}"})
    if answer.body is None:
        return FetchRejectedError(answer.reason, answer.detail, answer.retryable)
    try:
        return await session.read(page_of_range, answer.body, row, settings)
    except FetchRejectedError as error:
        return error


def page_of_range(body: bytes, row: Mapping[str, Any], settings: DownloadSettings) -> Page:
    """Return the page of the bytes of one record, compressed as in the archive.

    Raises:
        FetchRejectedError: The bytes are not the record of this capture, or its page is not to be used.
    """
    if len(body) != row["length"]:
        raise FetchRejectedError("broken_record", f"{len(body):,} bytes came, {row['length']:,} expected")
    stream = ArchiveStream(io.BytesIO(body), gzipped=True)
    record = next(read_records(stream, ("response",), settings.max_bytes), None)
    if record is None or isinstance(record, BrokenRecord):
        raise FetchRejectedError("broken_record", record.detail if record else "no response record")
    if record.url != row["url"]:
        raise FetchRejectedError("broken_record", f"the record is of {record.url[:200]}")
    page = page_of(record, f"commoncrawl/{row['crawl']}", settings.max_bytes, settings.max_ratio)
    if settings.consent.enabled:
        check_consent(page, record, settings.consent, settings.agent)
    return page
