"""Event loop with one fetcher in a thread of its own, for callers in other threads."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, Self

from tasks.download.fetch import Fetcher

POLL_SECONDS = 0.2  # interval of checks for a stop, and of progress reports


class FetchLoop:
    """Event loop with a fetcher; use as a context manager. `threads` are for what must not block the loop."""

    def __init__(self, name: str, threads: int, stopping: threading.Event, make_fetcher: Callable[[], Fetcher]) -> None:
        self._stopping, self._make_fetcher = stopping, make_fetcher
        self._loop = asyncio.new_event_loop()
        self._helpers = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="names")
        self._loop.set_default_executor(self._helpers)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._fetcher = asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._helpers.shutdown(wait=False, cancel_futures=True)

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__.lower()} cannot be pickled")

    async def _begin(self) -> Fetcher:
        return self._make_fetcher()

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._fetcher.close()
