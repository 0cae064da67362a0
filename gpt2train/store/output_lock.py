"""Lock of an output folder: one run at a time.

On a local disk the kernel holds the lock and releases it when a process is killed. In an object store the lock is an
object, `.lock`, that names its owner and is rewritten every few seconds. It is created by a conditional write (S3 since
2024, GCS). A lock that has not changed for `LEASE_SECONDS`, or whose process on this machine is gone, belongs to a
killed run and is taken over; clocks of different machines are never compared. A run that loses access to the store for
longer than the lease finds another owner's lock when access returns, and stops. Until then, for at most one lease, both
runs may write; this is harmless if their work is the same, since the bytes are the same.
"""

import contextlib
import itertools
import json
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gpt2train.errors import RunError, UserError
from gpt2train.store.files import write_error
from gpt2train.store.folder import TEMPORARY, Folder, sweep_drafts
from gpt2train.store.object_stores import abort_uploads, is_alive
from gpt2train.store.process import Heartbeat, LastChange

LOCK = ".lock"
HEARTBEAT_SECONDS = 10.0  # between two heartbeats
POLL_SECONDS = 0.5  # between two reads of another owner's lock
LEASE_SECONDS = 60.0  # without a heartbeat, after which a run counts as dead


@contextlib.contextmanager
def locked(root: Folder, lost: Callable[[], None] = lambda: None, patience: float = 0.0) -> Iterator[None]:
    """Lock an output folder, and remove the temporary files that killed runs left in it.

    `lost` is called from another thread when another run has taken over the lock. With patience, another run is waited
    for, for so many seconds.

    Raises:
        UserError: Another run holds the lock.
        RunError: The lock was lost.
    """
    with _lock_file(root, patience) if root.is_local else _lock_object(root, lost, patience):
        if root.is_local:
            for leftover in Path(root.path()).glob(f"{TEMPORARY}*"):
                leftover.unlink()  # left by a killed run; steps sweep their own folders
        else:
            sweep_drafts()
            abort_uploads(root.fs, root.path())
        yield


@contextlib.contextmanager
def _lock_file(root: Folder, patience: float) -> Iterator[None]:
    lock = FileLock(root.path(LOCK))
    try:
        lock.acquire(timeout=patience, poll_interval=POLL_SECONDS)
    except Timeout as error:
        raise UserError(_busy(root, _holder_of(root.path(LOCK)))) from error
    except OSError as error:  # also a disk without locks, as one of a network may be
        raise write_error(root.path(LOCK), error) from error
    try:
        yield
    finally:
        lock.release()


def _holder_of(path: str) -> str:
    """Process that holds a lock, as Linux lists it; empty for one of another machine or container."""
    with contextlib.suppress(OSError, ValueError):
        locks, found = Path("/proc/locks").read_text(), Path(path).stat()
        file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in locks.splitlines():
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and place == file and int(pid) > 0:
                return f" (process {pid})"
    return ""


@contextlib.contextmanager
def _lock_object(root: Folder, lost: Callable[[], None], patience: float) -> Iterator[None]:
    owner = {"token": secrets.token_hex(8), "host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}
    _acquire(root, owner, time.monotonic() + patience)
    beats, taken_over = itertools.count(1), threading.Event()

    def beat() -> bool:
        """Rewrite the lock, unless another owner is found in it."""
        # Any error of the store is ignored: the lease covers a short outage, and a heartbeat that ends loses the lock.
        with contextlib.suppress(Exception):
            if _read_owner(root).get("token") != owner["token"]:
                taken_over.set()
                lost()
            else:
                root.write_bytes(LOCK, json.dumps({**owner, "beat": next(beats)}).encode())
        return not taken_over.is_set()

    try:
        with Heartbeat(beat, HEARTBEAT_SECONDS):
            yield
    finally:
        if not taken_over.is_set() and _read_owner(root).get("token") == owner["token"]:
            root.remove(LOCK)
    if taken_over.is_set():
        raise RunError(f"another run took over {root.url} while this one had no access to it; run again when it ended")


def _acquire(root: Folder, owner: dict[str, Any], deadline: float = 0.0) -> None:
    """Create the lock; if there is one, watch it until it changes (then another run is alive) or its lease expires.

    A live run is waited for until the deadline.
    """
    seen: dict[str, Any] = {}
    change = LastChange()
    while True:
        found = _read_owner(root)
        if not found and _create(root, owner):
            return
        if found and seen and found != seen and time.monotonic() >= deadline:
            raise UserError(_busy(root, f" (process {found.get('pid')} on {found.get('host')})"))
        seen, silent = found, change.age(found)
        dead = found.get("machine") == owner["machine"] and not is_alive(int(found.get("pid", 0)))
        if found and (dead or silent > LEASE_SECONDS):
            if _read_owner(root) == found:
                root.remove(LOCK)
            continue
        time.sleep(POLL_SECONDS)


def _machine() -> str:
    """Return an id of this machine's (or container's) set of process ids. Host names are not unique in containers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - not a path, but a name of the kernel
    except OSError:
        return f"{uuid.getnode():x}"


def _create(root: Folder, owner: dict[str, Any]) -> bool:
    """Create the lock unless it exists; return True if this run owns it."""
    data = json.dumps({**owner, "beat": 0}).encode()
    try:
        with root.translate_errors(LOCK, writing=True):
            root.fs.pipe_file(root.path(LOCK), data, mode="create")
    except (FileExistsError, ValueError):
        return False
    # In a store without conditional writes, the last of two writers owns the lock.
    return _read_owner(root).get("token") == owner["token"]


def _read_owner(root: Folder) -> dict[str, Any]:
    try:
        found = json.loads(root.read_bytes(LOCK))
        return found if isinstance(found, dict) else {}
    except (FileNotFoundError, ValueError):
        return {}


def _busy(root: Folder, who: str) -> str:
    return f"another run{who} is at work in {root.url}; wait for it to end, or give another --output"
