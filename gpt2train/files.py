"""Files and folders that are written whole or are not there: temporary name, fsync, rename."""

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpt2train.errors import RunError, UserError

FULL = (errno.ENOSPC, errno.EDQUOT)  # no space on the disk, or none that a quota leaves
ELSEWHERE = "give another --output"
ROOM = 1 << 20  # bytes; a disk that does not take as many was full when a write failed


def write_error(place: str | Path, error: OSError, remedy: str = ELSEWHERE) -> UserError | RunError:
    """What a person is told of a write that the system refused: the place, the reason, what to do."""
    if error.errno in FULL:
        return RunError(f"no space left while writing {place}: free some, or {remedy}; run again to go on")
    return UserError(f"cannot write {place}: {error.strerror or error}; {remedy}")


def is_full(folder: Path) -> bool:
    """Whether a folder takes no further file of `ROOM` bytes. Tried: a quota shows in no figure of the disk."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(ROOM))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno in FULL
    return False


def size_words(size: int) -> str:
    """A number of bytes as a person reads it."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file, whole or not at all.

    Raises:
        RunError: the disk is full.
        UserError: the place cannot be written.
    """
    draft = path.parent / f".tmp-{secrets.token_hex(6)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        fsync(draft)
        draft.replace(path)
        fsync(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_whole(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; on leaving without an error it becomes `path`.

    An older folder of that name is moved aside first and removed last, so that a kill in between loses neither: what
    is under `path` is whole, or absent with the older one beside it as `.old-…`.

    Raises:
        RunError: the disk is full.
        UserError: the place cannot be written.
    """
    token = secrets.token_hex(6)
    draft, old = path.parent / f".tmp-{token}", path.parent / f".old-{token}"
    try:
        draft.mkdir(parents=True)
        yield draft
        for file in sorted(draft.rglob("*")):
            fsync(file)
        fsync(draft)
        if path.exists():
            path.rename(old)
        draft.rename(path)
        fsync(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def fsync(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
