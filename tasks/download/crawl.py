"""Crawler: one event loop and one fetcher for a whole download, shared by concurrent shards of URLs.

Each host of a shard has its own queue and tasks, which fetch its pages one after the other at the host's pace. So a
slow host delays only the shards that name it. Memory is bounded by the number of tasks, not by the length of the list:
each page goes to the journal of its shard as soon as it is fetched.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from gpt2train.errors import RunError
from tasks.core.forgotten import Forgotten
from tasks.core.url_lists import host_of
from tasks.download.fetch import Fetcher
from tasks.download.fetch_loop import POLL_SECONDS, FetchLoop
from tasks.download.journal import Journal
from tasks.download.ledger import Fetched, Row
from tasks.download.revisit import compared, keeps_earlier
from tasks.download.settings import DownloadSettings
from tasks.download.warc import Page, encode_record

TASKS_PER_REQUEST = 16  # host tasks per concurrent request: most tasks wait for their host's next request slot
MIN_THREAD_BYTES = 2**13  # pages from this size on are compressed in a thread: zlib releases the GIL

PAGE_FIELDS = [field.name for field in dataclasses.fields(Page) if field.name != "fault"]  # fetched pages have none

PendingPage = tuple[int, str, str]  # index in the shard, URL, source
Earlier = Mapping[int, Row] | None  # ledger rows of an earlier download by index; None if it is not a refresh


class Crawler(FetchLoop):
    """Fetches shards on behalf of waiting threads until `stopping` is set; use as a context manager.

    `on_progress` is called several times a second: name of the shard, URLs done, URLs to fetch.
    """

    def __init__(
        self,
        settings: DownloadSettings,
        connect_to: Mapping[str, str],
        stopping: threading.Event,
        on_progress: Callable[[str, int, int], None],
        forgotten: Forgotten,
    ) -> None:
        # A DNS lookup that hangs blocks a thread, so there are as many threads as requests.
        fetcher = functools.partial(Fetcher, settings, connect_to, forgotten=forgotten)
        super().__init__("crawl", settings.concurrency, stopping, fetcher)
        self._settings, self._report = settings, on_progress
        self._packers = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="pack")
        self._tasks = asyncio.Semaphore(settings.concurrency * TASKS_PER_REQUEST)

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._packers.shutdown(wait=False, cancel_futures=True)

    def fetch(self, name: str, pending: Sequence[PendingPage], journal: Journal, earlier: Earlier = None) -> None:
        """Fetch the URLs of one shard into its open journal, and wait until all are done.

        With the ledger rows of the `earlier` pages by index, each page is compared with its earlier fetch; the rows in
        the journal are those of `revisit.compared`, and a page that stays has no record there.

        Raises:
            RunError: The run must end; the journal keeps the pages so far.
        """
        ended, before = threading.Event(), len(journal.done)
        work = asyncio.run_coroutine_threadsafe(self._shard(pending, journal, earlier, ended), self._loop)
        while True:
            done, _ = concurrent.futures.wait([work], POLL_SECONDS)
            self._report(name, len(journal.done) - before, len(pending))
            if done:
                return work.result()
            if self._stopping.is_set():
                work.cancel()
                ended.wait(POLL_SECONDS)  # the journal is closed next, so its tasks must have ended
                raise RunError("the download was stopped; run again to go on")

    async def _shard(
        self, pending: Sequence[PendingPage], journal: Journal, earlier: Earlier, ended: threading.Event
    ) -> None:
        hosts: dict[str, deque[PendingPage]] = {}
        for item in pending:
            hosts.setdefault(host_of(item[1]), deque()).append(item)
        try:
            async with asyncio.TaskGroup() as group:
                for queue in hosts.values():
                    for _ in range(min(self._settings.per_host, len(queue))):
                        await self._tasks.acquire()
                        group.create_task(self._fetch_queue(queue, journal, earlier))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            ended.set()

    async def _fetch_queue(self, queue: "deque[PendingPage]", journal: Journal, earlier: Earlier) -> None:
        try:
            while queue:
                index, url, source = queue.popleft()
                before = earlier.get(index) if earlier is not None else None
                known = before if before and before["source"] == source and not before["reason"] else None
                fetched = await self._fetcher.fetch(url, source, earlier=known)
                try:
                    record = b"" if keeps_earlier(fetched, before) else await self._pack(fetched)
                except Exception as error:  # noqa: BLE001 - as in `Fetcher.fetch`
                    self._fetcher.fail_unexpected(fetched, error)
                    record = b""
                journal.add(index, fetched.row() if earlier is None else compared(fetched, before), record)
        finally:
            self._tasks.release()

    async def _pack(self, fetched: Fetched) -> bytes:
        if fetched.body is None:
            return b""
        page = Page(**{name: getattr(fetched, name) for name in PAGE_FIELDS})
        if len(fetched.body) < MIN_THREAD_BYTES:
            return encode_record(page)
        return await self._loop.run_in_executor(self._packers, encode_record, page)
