"""Files and folders that are written whole or are not there: temporary name, fsync, rename."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from gpt2train.errors import UserError


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file, whole or not at all.

    Raises:
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
        raise UserError(f"cannot write {path}: {error.strerror}; give another --output") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_whole(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; on leaving without an error it becomes `path`.

    An older folder of that name is moved aside first and removed last, so that a kill in between loses neither: what
    is under `path` is whole, or absent with the older one beside it as `.old-…`.

    Raises:
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
        raise UserError(f"cannot write {path}: {error.strerror or error}; give another --output") from error
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
