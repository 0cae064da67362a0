"""One event loop and one fetcher for a whole download; shards of URLs go through it side by side.

Each host has a lane: its pages are fetched one after the other, at the pace that suits it. So a slow host holds back
the shards that name it and no others. What is in memory is bounded by the lanes, not by the list: a page goes to the
journal of its shard as it comes.
"""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from gpt2train.errors import RunError
from tasks.download.fetch import Fetched, Fetcher
from tasks.download.journal import Journal
from tasks.download.settings import DownloadSettings
from tasks.download.warc import Page, encode_record

STOP_SECONDS = 0.2  # how often a crawl looks whether it should stop
LANES = 16  # for each request that may be in flight: most lanes wait for their host's next turn
LARGE = 2**13  # bytes of a page that is packed in a thread: zlib lets other threads run

Wanted = tuple[int, str, str]  # index in the shard, URL, source


class Crawler:
    """Fetches shards for threads that wait for them; use as a context manager.

    Args:
        connect_to: host pattern -> `address:port` to connect to instead.
        stopping: set when the run is to end.
        tell: told of a shard several times a second: its name, URLs done, URLs that were to be done.
    """

    def __init__(
        self,
        settings: DownloadSettings,
        connect_to: Mapping[str, str],
        stopping: threading.Event,
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._settings, self._connect_to, self._stopping, self._tell = settings, connect_to, stopping, tell
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crawl", daemon=True)
        # A look-up that hangs takes a thread: as many as there may be requests, or dead names hold back the rest.
        self._names = concurrent.futures.ThreadPoolExecutor(settings.concurrency, thread_name_prefix="names")
        self._packers = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="pack")

    def __enter__(self) -> "Crawler":
        self._loop.set_default_executor(self._names)
        self._thread.start()
        self._fetcher, self._lanes = asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for executor in (self._names, self._packers):
            executor.shutdown(wait=False, cancel_futures=True)

    def __reduce__(self) -> Any:
        raise TypeError("a crawler stays in its process")

    def fetch(self, name: str, wanted: Sequence[Wanted], journal: Journal) -> None:
        """Fetch the URLs of the shard `name` into a journal, and wait until all are done.

        Raises:
            RunError: the run is to end; what is in the journal is not lost.
        """
        ended, before = threading.Event(), len(journal.done)
        work = asyncio.run_coroutine_threadsafe(self._shard(wanted, journal, ended), self._loop)
        while True:
            done, _ = concurrent.futures.wait([work], STOP_SECONDS)
            self._tell(name, len(journal.done) - before, len(wanted))
            if done:
                return work.result()
            if self._stopping.is_set():
                work.cancel()
                ended.wait(STOP_SECONDS)  # the journal is closed after this: its lanes are to have ended
                raise RunError("the download was stopped; run again to go on")

    async def _begin(self) -> tuple[Fetcher, asyncio.Semaphore]:
        fetcher = Fetcher(self._settings, self._connect_to)
        return fetcher, asyncio.Semaphore(self._settings.concurrency * LANES)

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._fetcher.close()

    async def _shard(self, wanted: Sequence[Wanted], journal: Journal, ended: threading.Event) -> None:
        hosts: dict[str, deque[Wanted]] = {}
        for item in wanted:
            hosts.setdefault(_host_of(item[1]), deque()).append(item)
        try:
            async with asyncio.TaskGroup() as group:
                for queue in hosts.values():
                    for _ in range(min(self._settings.per_host, len(queue))):
                        await self._lanes.acquire()
                        group.create_task(self._lane(queue, journal))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            ended.set()

    async def _lane(self, queue: "deque[Wanted]", journal: Journal) -> None:
        try:
            while queue:
                index, url, source = queue.popleft()
                fetched = await self._fetcher.fetch(url, source)
                journal.add(index, ledger_row(fetched), await self._pack(fetched))
        finally:
            self._lanes.release()

    async def _pack(self, fetched: Fetched) -> bytes:
        if fetched.body is None:
            return b""
        if len(fetched.body) < LARGE:
            return encode_record(_page(fetched))
        return await self._loop.run_in_executor(self._packers, encode_record, _page(fetched))


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
        "ip": fetched.ip,
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
        ip=fetched.ip,
        content_language=_text(fetched.content_language),
    )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _text(value: str) -> str:
    return value.encode("utf-8", errors="replace").decode()
