"""Requests of the discovery: one event loop and one set of rate limits for all domains, used from batch threads."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from yarl import URL

from gpt2train.errors import RunError
from tasks.core.forgotten import Forgotten
from tasks.discover.xml_entries import MAX_FILE
from tasks.download.consent.settings import ConsentSettings
from tasks.download.fetch import NONE_FORGOTTEN, Fetcher
from tasks.download.ledger import Fetched
from tasks.download.settings import DownloadSettings

POLL_SECONDS = 0.2
MAX_THREADS = 64  # lookups of host names, and files that are parsed
T = TypeVar("T")


class Session:
    """Polite fetching of sitemaps, feeds, pages and index answers; use as a context manager.

    Args:
        settings: Rate limits, deadlines and allowed addresses of the download.
        connect_to: As in the download.
        stopping: Ends the calls in flight when it is set.
        obey_robots: False for a service that is asked through its interface and not crawled.
        forgotten: Pages that are not requested.
    """

    def __init__(
        self,
        settings: DownloadSettings,
        connect_to: Mapping[str, str],
        stopping: threading.Event,
        *,
        obey_robots: bool = True,
        forgotten: Forgotten = NONE_FORGOTTEN,
    ) -> None:
        self.max_ratio = settings.max_ratio
        changes = {
            "content_types": ("*/*",),
            "max_bytes": MAX_FILE,
            "max_wire_bytes": MAX_FILE,
            "consent": ConsentSettings(enabled=False),  # what is read here is no training text
            "obey_robots": obey_robots and settings.obey_robots,
        }
        self._settings, self._connect_to = settings.model_copy(update=changes), connect_to
        self._stopping, self._forgotten = stopping, forgotten
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="discover", daemon=True)

    def __enter__(self) -> "Session":
        self._loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(MAX_THREADS))
        self._thread.start()
        self._fetcher = asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __reduce__(self) -> Any:
        raise TypeError("a session cannot be pickled")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            RunError: The run must end.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not concurrent.futures.wait([future], POLL_SECONDS).done:
            if self._stopping.is_set():
                future.cancel()
                raise RunError("the discovery was stopped; run again to go on")
        return future.result()

    async def fetch(self, url: str, headers: Mapping[str, str] | None = None) -> Fetched:
        """Fetch one address; as `Fetcher.fetch`."""
        return await self._fetcher.fetch(url, "", headers)

    async def named_sitemaps(self, url: URL) -> list[str]:
        """Return the sitemaps that robots.txt of a site names; none if it cannot be read."""
        return await self._fetcher.hosts.sitemaps(url)

    async def read(self, parse: Callable[..., T], *args: Any) -> T:
        """Call a parser outside of the event loop."""
        return await asyncio.to_thread(parse, *args)

    async def _begin(self) -> Fetcher:
        return Fetcher(self._settings, self._connect_to, forgotten=self._forgotten)

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._fetcher.close()
