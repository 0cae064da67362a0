"""One run at a time in an output folder.

On a local disk the kernel holds the lock, and lets go of it when a process is killed. In an object store it is an
object, `.lock`, that names its owner and is written anew every few seconds. It is made only where none is (a
conditional write: S3 since 2024, GCS). A lock that has not changed for `LEASE` seconds, or whose process on this very
machine is gone, is of a killed run, and is taken over; clocks of different machines are never compared. Should a run be
cut off from the store for longer than that and come back, it finds another's lock and stops: until then, at most one
lease, both may write, which harms nothing when they are the same work, since the bytes are the same.
"""

import contextlib
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
from tasks.storage import TEMPORARY, Folder, sweep_drafts
from tasks.stores import abort_uploads, is_alive

LOCK = ".lock"
BEAT = 10.0  # seconds between two signs of life
LOOK = 0.5  # seconds between two looks at another's lock
LEASE = 60.0  # seconds without one after which a run counts as dead


@contextlib.contextmanager
def locked(root: Folder, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an output folder, and sweep what killed runs left in it half written.

    Args:
        root: the output folder.
        lost: called, from another thread, when another run took the lock over.

    Raises:
        UserError: another run is at work there.
        RunError: the lock was lost.
    """
    with _lock_file(root) if root.is_local else _lock_object(root, lost):
        if root.is_local:
            for leftover in Path(root.path()).glob(f"{TEMPORARY}*"):
                leftover.unlink()  # of a run that was killed while it wrote; steps sweep their own folders
        else:
            sweep_drafts()
            abort_uploads(root.fs, root.path())
        yield


@contextlib.contextmanager
def _lock_file(root: Folder) -> Iterator[None]:
    lock = FileLock(root.path(LOCK))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(_busy(root, "")) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _lock_object(root: Folder, lost: Callable[[], None]) -> Iterator[None]:
    mine = {"token": secrets.token_hex(8), "host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}
    _take(root, mine)
    stop, gone = threading.Event(), threading.Event()
    beating = threading.Thread(target=_beat, args=(root, mine, stop, gone, lost), daemon=True)
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join()
        if not gone.is_set() and _holder(root).get("token") == mine["token"]:
            root.remove(LOCK)
    if gone.is_set():
        raise RunError(f"another run took {root.url} over, since this one was cut off from it; run again when it ended")


def _take(root: Folder, mine: dict[str, Any]) -> None:
    """Make the lock; where there is one, watch it until it moves or its lease is over."""
    seen: dict[str, Any] = {}
    since = time.monotonic()
    while True:
        found = _holder(root)
        if not found and _make(root, mine):
            return
        if found and seen and found != seen:
            raise UserError(_busy(root, f" (process {found.get('pid')} on {found.get('host')})"))
        if found != seen:
            seen, since = found, time.monotonic()
        dead = found.get("machine") == mine["machine"] and not is_alive(int(found.get("pid", 0)))
        if found and (dead or time.monotonic() - since > LEASE):
            if _holder(root) == found:
                root.remove(LOCK)
            continue
        time.sleep(LOOK)


def _machine() -> str:
    """What tells one set of process ids from another: names of hosts repeat, in containers above all."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path, a name of the kernel's
    except OSError:
        return f"{uuid.getnode():x}"


def _make(root: Folder, mine: dict[str, Any]) -> bool:
    """Write the lock unless there is one."""
    data = json.dumps({**mine, "beat": 0}).encode()
    try:
        with root.clear(LOCK, writing=True):
            root.fs.pipe_file(root.path(LOCK), data, mode="create")
    except (FileExistsError, ValueError):
        return False
    # Of two in a store that knows no conditional write, the last to write has it.
    return _holder(root).get("token") == mine["token"]


def _holder(root: Folder) -> dict[str, Any]:
    try:
        found = json.loads(root.read_bytes(LOCK))
        return found if isinstance(found, dict) else {}
    except (FileNotFoundError, ValueError):
        return {}


def _beat(
    root: Folder, mine: dict[str, Any], stop: threading.Event, gone: threading.Event, lost: Callable[[], None]
) -> None:
    """Write the lock anew until told to stop; when another's is found there, say so and leave it."""
    beat = 0
    while not stop.wait(BEAT):
        with contextlib.suppress(ConnectionError, TimeoutError, OSError):  # the lease bridges a short outage
            if _holder(root).get("token") != mine["token"]:
                gone.set()
                lost()
                return
            beat += 1
            root.write_bytes(LOCK, json.dumps({**mine, "beat": beat}).encode())


def _busy(root: Folder, who: str) -> str:
    return f"another run{who} is at work in {root.url}; wait for it to end, or give another --output"
