"""Memory management of the extraction workers: cache resets, and replacement of workers that have grown."""

import functools
import os

from trafilatura.meta import reset_caches

from tasks.core.memory_limit import STATM, bytes_of
from tasks.extract.options import WORKER_OUTGROWN
from tasks.extract.trafilatura_patches import clear_caches

# The caches of trafilatura, htmldate and justext are cleared after this many pages; they fill within some thousand.
RESET_PAGES = 1000


def recycle_worker(megabytes: int | None) -> None:
    """End this process if it has grown by more than `megabytes` since the first call; the pool starts another.

    To be called before the work of a call begins, so that nothing is lost: the sender sees the exit code
    `WORKER_OUTGROWN` and sends the call again.
    """
    if megabytes is not None and STATM.exists() and bytes_of(1) > _initial_bytes() + megabytes * 2**20:
        os._exit(WORKER_OUTGROWN)


class CacheRecycler:
    """Page counter that clears the caches after every `RESET_PAGES` pages."""

    def __init__(self) -> None:
        self.pages = 0

    def add(self) -> None:
        """Count one page."""
        self.pages += 1
        if self.pages % RESET_PAGES == 0:
            reset_caches()
            clear_caches()


cache_recycler = CacheRecycler()


@functools.cache
def _initial_bytes() -> int:
    """Resident bytes at the first call."""
    return bytes_of(1)
