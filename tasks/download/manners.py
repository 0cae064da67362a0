"""Manners that several downloads keep together: one count of requests a host over all processes of a user.

A file in the user's cache folder has a record for each host (a hash of its name): when it may be asked next, and who
waits for it. A request in flight is a lock on one byte of the file, one byte a slot, so that the kernel gives back what
a killed process held. Locks are POSIX's, by byte: they work on a disk that several machines share as well, for which
the times are of the wall clock. A record is 16 bytes; of the file's 16 MiB only what is used takes room on the disk.

Two hosts that share a record (1 in 20 of 50,000 hosts) are as polite to each other as one host's pages are.
"""

import contextlib
import functools
import hashlib
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gpt2train.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: each process keeps its own count
    fcntl = None  # type: ignore[assignment]

AUTO, OFF = "auto", "off"
FILE = "hosts-2"
RECORDS = 2**20
RECORD = struct.Struct("<dII")  # time of the next turn, process that waits for a slot, when it last looked: `stamp`
SLOTS = 100  # bytes that stand for slots of a host: the most that download.per_host takes
LOCKS = 2**26  # where these bytes begin, beyond the file's end; the lock of a record is its first byte
WANTED = 500  # milliseconds for which one who waits is let go first
FAR = 7200.0  # seconds: a turn that lies further ahead is of a clock that was set back


class Manners:
    """The turns of all hosts in one folder; one object a process and folder, for its locks are the process's.

    Args:
        folder: made when missing.

    Raises:
        UserError: the folder cannot be written, or its disk knows no locks.
    """

    def __init__(self, folder: Path) -> None:
        self._mutex = threading.Lock()
        self._held: set[int] = set()
        self._me = os.getpid() & 0xFFFFFFFF
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._file, RECORDS * RECORD.size)
            fcntl.lockf(self._file, fcntl.LOCK_SH, 1, LOCKS - 1)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, LOCKS - 1)
        except OSError as error:
            raise UserError(
                f"downloads cannot keep count in {folder}: {error.strerror}; set download.manners to another folder, "
                f"or to {OFF!r}"
            ) from error

    def take(self, host: str, slots: int) -> int | None:
        """Take one of a host's slots; None when all are in use, or another process waits for one.

        Never waits. What it returns is for `give_back`.
        """
        record = record_of(host)
        with self._mutex, self._locked(record):
            turn, waiting, looked = self._read(record)
            now = time.time()
            if waiting not in (0, self._me) and apart(looked, stamp(now)) < WANTED:
                return None
            for slot in range(LOCKS + record * SLOTS, LOCKS + record * SLOTS + min(slots, SLOTS)):
                if slot not in self._held and self._lock(slot):
                    self._held.add(slot)
                    if waiting:
                        self._write(record, turn, 0, 0)
                    return slot
            if slots > sum(LOCKS + record * SLOTS <= one < LOCKS + (record + 1) * SLOTS for one in self._held):
                self._write(record, turn, self._me, stamp(now))  # another process has it, and should let us go first
            return None

    def give_back(self, slot: int) -> None:
        """Give a slot back."""
        with self._mutex:
            self._held.discard(slot)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)

    def next_turn(self, host: str, delay: float) -> float:
        """Seconds until the host may be asked; the turn after that one is `delay` seconds later."""
        record = record_of(host)
        with self._mutex, self._locked(record):
            turn, waiting, looked = self._read(record)
            now = time.time()
            at = max(now, turn) if turn - now < FAR else now
            if delay or at > now:
                self._write(record, at + delay, waiting, looked)
            return at - now

    def hold_off(self, host: str, seconds: float) -> None:
        """Let nobody ask the host before so many seconds have passed."""
        record = record_of(host)
        with self._mutex, self._locked(record):
            turn, waiting, looked = self._read(record)
            self._write(record, max(turn, time.time() + seconds), waiting, looked)

    @contextlib.contextmanager
    def _locked(self, record: int) -> Iterator[None]:
        """Hold a record for the microseconds that it is read and written in."""
        at = record * RECORD.size
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, at)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, at)

    def _read(self, record: int) -> tuple[float, int, int]:
        found: tuple[float, int, int] = RECORD.unpack(os.pread(self._file, RECORD.size, record * RECORD.size))
        return found

    def _write(self, record: int, turn: float, waiting: int, looked: int) -> None:
        os.pwrite(self._file, RECORD.pack(turn, waiting, looked), record * RECORD.size)

    def _lock(self, at: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
        except OSError:
            return False
        return True


def stamp(now: float) -> int:
    """A time of the wall clock, in milliseconds, as a record's 4 bytes hold it: begun anew every 50 days."""
    return int(now * 1000) % 2**32


def apart(one: int, other: int) -> int:
    """Milliseconds between two stamps, whichever is first: the clocks of machines that share a disk differ a little."""
    return min((one - other) % 2**32, (other - one) % 2**32)


@functools.lru_cache(maxsize=65536)
def record_of(host: str) -> int:
    """The record of a host."""
    return int.from_bytes(hashlib.blake2b(host.encode(), digest_size=8).digest()) % RECORDS


def manners_folder(setting: str) -> Path | None:
    """The folder that `download.manners` names; None where each process keeps its own count."""
    if setting == OFF or fcntl is None:
        return None
    if setting != AUTO:
        return Path(setting).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpt2train" / "manners"


_opened: dict[Path, Manners] = {}
_opening = threading.Lock()


def manners_in(folder: Path) -> Manners:
    """The manners of a folder. Never closed: POSIX lets go of all of a file's locks when any descriptor of it closes.

    Raises:
        UserError: the folder cannot be used.
    """
    with _opening:
        place = folder.absolute()
        if place not in _opened:
            _opened[place] = Manners(place)
        return _opened[place]
