"""Rate limit per host that all downloads of a user share, across processes.

A file in the user's cache folder has a record for each host (by a hash of its name): the time of the next request, and
the process that waits for a slot. A request in flight holds a lock on one byte of the file, one byte per slot, so that
the kernel releases the slots of a killed process. The locks are POSIX record locks, which also work on a disk that
several machines share; for that, times are wall-clock times. A record has 16 bytes; the file of 16 MiB is sparse.

Two hosts that share a record (1 in 20 of 50,000 hosts) are limited like one host.
"""

import contextlib
import functools
import hashlib
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.settings import in_home

try:
    import fcntl
except ImportError:  # Windows: each process keeps its own count
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("gpt2train")

AUTO, OFF = "auto", "off"
FILE = "hosts-2"
RECORDS = 2**20
RECORD = struct.Struct("<dII")  # time of the next request, process that waits for a slot, `stamp` of its last attempt
SLOTS = 100  # lock bytes per host: the maximum of download.per_host
LOCKS = 2**26  # offset of the slots' lock bytes, beyond the file's end; the lock of a record is its first byte
PRIORITY_MILLISECONDS = 500  # after its last attempt, during which a waiting process has priority
MAX_AHEAD_SECONDS = 7200.0  # a next request further ahead comes from a clock that was set back


class SharedRateLimiter:
    """Shared rate limit in one folder. A process must open it once, because POSIX locks belong to the process.

    Raises:
        UserError: The folder cannot be written, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        self._mutex = threading.Lock()
        self._held: set[int] = set()
        self._pid = os.getpid() & 0xFFFFFFFF
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            os.ftruncate(self._file, RECORDS * RECORD.size)
            fcntl.lockf(self._file, fcntl.LOCK_SH, 1, LOCKS - 1)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, LOCKS - 1)
        except OSError as error:
            raise UserError(
                f"downloads cannot share their rate limit in {folder}: {error.strerror}; "
                f"set download.shared_rate_limit_dir to another folder, or to {OFF!r}"
            ) from error

    def acquire(self, host: str, slots: int) -> int | None:
        """Try to acquire one of a host's `slots` concurrent requests, without waiting; return it for `release`.

        None if all are in use or another process has priority.
        """
        with self._locked(host) as (record, next_time, waiting, attempt):
            now = stamp(time.time())
            # In either order: the clocks of machines that share a disk differ.
            distance = min((attempt - now) % 2**32, (now - attempt) % 2**32)
            if waiting not in (0, self._pid) and distance < PRIORITY_MILLISECONDS:
                return None
            first = LOCKS + record * SLOTS
            for slot in range(first, first + min(slots, SLOTS)):
                if slot not in self._held and self._lock(slot):
                    self._held.add(slot)
                    if waiting:
                        self._write(record, next_time, 0, 0)
                    return slot
            if slots > sum(first <= held < first + SLOTS for held in self._held):
                self._write(record, next_time, self._pid, now)  # ask the process that holds it for priority
            return None

    def release(self, slot: int) -> None:
        """Release a slot."""
        with self._mutex:
            self._held.discard(slot)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)

    def reserve(self, host: str, delay: float) -> float:
        """Reserve the host's next request time, `delay` seconds before the one after it; return the seconds to wait."""
        with self._locked(host) as (record, next_time, waiting, attempt):
            now = time.time()
            at = max(now, next_time) if next_time - now < MAX_AHEAD_SECONDS else now
            if delay or at > now:
                self._write(record, at + delay, waiting, attempt)
            return at - now

    def delay_host(self, host: str, seconds: float) -> None:
        """Allow no request to the host for some seconds."""
        with self._locked(host) as (record, next_time, waiting, attempt):
            self._write(record, max(next_time, time.time() + seconds), waiting, attempt)

    @contextlib.contextmanager
    def _locked(self, host: str) -> Iterator[tuple[int, float, int, int]]:
        """Lock a host's record for the microseconds of one read and write; yield its index and its values."""
        record = record_index(host)
        at = record * RECORD.size
        with self._mutex:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, at)
            try:
                next_time, waiting, attempt = RECORD.unpack(os.pread(self._file, RECORD.size, at))
                yield record, next_time, waiting, attempt
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, at)

    def _write(self, record: int, next_time: float, waiting: int, attempt: int) -> None:
        os.pwrite(self._file, RECORD.pack(next_time, waiting, attempt), record * RECORD.size)

    def _lock(self, at: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
        except OSError:
            return False
        return True


def stamp(now: float) -> int:
    """Return a wall-clock time in milliseconds modulo 2^32 (50 days), as stored in 4 bytes of a record."""
    return int(now * 1000) % 2**32


@functools.lru_cache(maxsize=65536)
def record_index(host: str) -> int:
    """Return the index of a host's record."""
    return int.from_bytes(hashlib.blake2b(host.encode(), digest_size=8).digest()) % RECORDS


_opened: dict[Path, SharedRateLimiter] = {}
_opening = threading.Lock()


def open_rate_limiter(setting: str) -> SharedRateLimiter | None:
    """Open the rate limit of `download.shared_rate_limit_dir`; None if each process has its own limits.

    A folder is opened once per process and never closed, because closing any descriptor of a file releases all POSIX
    locks of the process on it.

    Raises:
        UserError: The folder of the setting cannot be used; the default one is then not used.
    """
    if setting == OFF or fcntl is None:
        return None
    try:
        if setting == AUTO:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpt2train" / "rate-limit"
        else:
            folder = Path(in_home(setting))
        with _opening:
            path = folder.absolute()
            if path not in _opened:
                _opened[path] = SharedRateLimiter(path)
            return _opened[path]
    except (UserError, RuntimeError) as error:  # RuntimeError: no home folder
        if setting != AUTO:
            raise
        log.warning("%s; until then each download has its own rate limit", error)
        return None
