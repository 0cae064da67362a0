"""Requests of the discovery: one event loop and one set of rate limits for all domains, used from batch threads."""

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from yarl import URL

from gpt2train.errors import RunError
from tasks.core.forgotten import Forgotten
from tasks.discover.xml_entries import MAX_FILE
from tasks.download.consent.settings import ConsentSettings
from tasks.download.fetch import NONE_FORGOTTEN, Fetcher
from tasks.download.fetch_loop import POLL_SECONDS, FetchLoop
from tasks.download.ledger import Fetched
from tasks.download.settings import DownloadSettings

MAX_THREADS = 64  # lookups of host names, and files that are parsed
T = TypeVar("T")


class Session(FetchLoop):
    """Polite fetching of sitemaps, feeds, pages and index answers; use as a context manager.

    The settings are those of the download. `obey_robots` is False for a service that is asked through its interface
    and not crawled.
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
        fetcher = functools.partial(Fetcher, settings.model_copy(update=changes), connect_to, forgotten=forgotten)
        super().__init__("discover", MAX_THREADS, stopping, fetcher)

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
