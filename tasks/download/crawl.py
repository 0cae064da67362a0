"""One shard of URLs, fetched at once within the limits, written in the order of the list.

Pages arrive in any order. Each is compressed as it comes and set aside in a spool file, and the spool is copied in the
list's order at the end: what is held in memory is bounded by the requests in flight, not by the shard.
"""

import asyncio
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gpt2train.errors import RunError
from tasks.download.fetch import Fetched, Fetcher
from tasks.download.hosts import HostMemory
from tasks.download.settings import DownloadSettings
from tasks.download.warc import EMPTY, Page, encode_record

STOP_SECONDS = 0.2  # how often a crawl looks whether it should stop


def crawl(
    wanted: Sequence[tuple[str, str]],
    path: Path,
    settings: DownloadSettings,
    connect_to: Mapping[str, str],
    memory: HostMemory,
    stopping: threading.Event,
) -> list[dict[str, Any]]:
    """Fetch (url, source) pairs into one WARC file and return the ledger, both in the given order.

    Raises:
        RunError: `stopping` was set; nothing is lost but this shard.
    """
    memory.prune()
    with tempfile.TemporaryFile() as spool:
        results = asyncio.run(_crawl(wanted, settings, connect_to, memory, stopping, spool))
        with path.open("wb") as file:
            for _, (offset, length) in results:
                spool.seek(offset)
                file.write(spool.read(length))
            if not file.tell():
                file.write(EMPTY)
    return [row for row, _ in results]


async def _crawl(
    wanted: Sequence[tuple[str, str]],
    settings: DownloadSettings,
    connect_to: Mapping[str, str],
    memory: HostMemory,
    stopping: threading.Event,
    spool: IO[bytes],
) -> list[tuple[dict[str, Any], tuple[int, int]]]:
    """(ledger row, (offset, length) in the spool) of each URL."""
    async with Fetcher(settings, connect_to, memory) as fetcher:

        async def one(url: str, source: str) -> tuple[dict[str, Any], tuple[int, int]]:
            fetched = await fetcher.fetch(url, source)
            row = ledger_row(fetched)
            if fetched.body is None:
                return row, (0, 0)
            offset = spool.tell()
            spool.write(encode_record(_page(fetched)))
            return row, (offset, spool.tell() - offset)

        work = asyncio.gather(*(one(url, source) for url, source in wanted))
        while not work.done():
            await asyncio.wait([work], timeout=STOP_SECONDS)
            if stopping.is_set():
                work.cancel()
                raise RunError("the download was stopped; run again to go on")
        return work.result()


def ledger_row(fetched: Fetched) -> dict[str, Any]:
    """A row of the ledger. What servers send may hold bytes that are no text: those become question marks."""
    return {
        "url": fetched.url,
        "source": fetched.source,
        "final_url": _text(fetched.final_url),
        "status": "failed" if fetched.reason else "ok",
        "reason": fetched.reason,
        "detail": _text(fetched.detail),
        "retryable": fetched.retryable,
        "http_status": fetched.http_status,
        "content_type": _text(fetched.content_type),
        "charset": fetched.charset and _text(fetched.charset),
        "bytes": len(fetched.body or b""),
        "sha256": fetched.sha256,
        "fetched_at": fetched.fetched_at,
        "elapsed_ms": fetched.elapsed_ms,
        "attempts": fetched.attempts,
    }


def _page(fetched: Fetched) -> Page:
    assert fetched.body is not None
    return Page(
        url=fetched.url,
        final_url=fetched.final_url,
        content_type=_text(fetched.content_type),
        charset=fetched.charset and _text(fetched.charset),
        body=fetched.body,
        fetched_at=fetched.fetched_at,
        sha256=fetched.sha256,
        source=fetched.source,
    )


def _text(value: str) -> str:
    return value.encode("utf-8", errors="replace").decode()
