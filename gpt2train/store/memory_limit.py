"""Limit on the memory of this process, by Linux's /proc and RLIMIT_AS; without effect on other systems."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

try:
    import resource
except ImportError:  # Windows, which has no /proc either
    resource = None  # type: ignore[assignment]

STATM = Path("/proc/self/statm")


@contextlib.contextmanager
def memory_limit(megabytes: int | None) -> Iterator[None]:
    """Limit the additional address space of this process to so many MiB in a block; beyond, Python raises MemoryError.

    Has no effect without /proc and RLIMIT_AS (outside Linux). The limit is reset on exit, because the worker serves
    other steps as well.
    """
    if megabytes is None or not STATM.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = bytes_of(0) + megabytes * 2**20
    bounds = [wanted, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def bytes_of(field: int) -> int:
    """Return the address space (field 0) or resident memory (field 1) of this process in bytes."""
    return int(STATM.read_text().split()[field]) * resource.getpagesize()
