"""A worker that takes hostile pages apart: bounded in memory, replaced when it has grown."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trafilatura.meta import reset_caches

from tasks.html.recipe import WORN
from tasks.html.shortcuts import forget

if sys.platform != "win32":
    import resource

STATM = Path("/proc/self/statm")  # Linux; elsewhere nothing is limited
RESET = (
    1000  # pages after which the caches of trafilatura, htmldate and justext are emptied; they fill in some thousand
)


@contextlib.contextmanager
def memory_limit(megabytes: int | None) -> Iterator[None]:
    """Let the process add at most so much address space meanwhile; past it Python raises MemoryError.

    Only where the system has /proc and RLIMIT_AS (Linux); elsewhere nothing is limited. The limit is lifted again,
    because the worker serves other steps as well.
    """
    if megabytes is None or not STATM.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _bytes(0) + megabytes * 2**20
    bounds = [wanted, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def end_if_worn(megabytes: int | None) -> None:
    """End this process where it has grown by more than so much since it was asked first; the pool makes another.

    Called before a call's work begins, so that nothing is lost: whoever sent the call sees the exit code `WORN` and
    sends it again.
    """
    if megabytes is not None and STATM.exists() and _bytes(1) > _first() + megabytes * 2**20:
        os._exit(WORN)


class Wear:
    """Counts pages, and empties the caches after every `RESET`."""

    def __init__(self) -> None:
        self.pages = 0

    def add(self) -> None:
        """Count one page."""
        self.pages += 1
        if self.pages % RESET == 0:
            reset_caches()
            forget()


wear = Wear()


@functools.cache
def _first() -> int:
    """Resident bytes at the first call."""
    return _bytes(1)


def _bytes(field: int) -> int:
    """Address space (0) or resident memory (1) of this process."""
    return int(STATM.read_text().split()[field]) * resource.getpagesize()
