"""Folders under one output URL, and files that are whole or not there.

Local disk: temporary name, fsync, rename, fsync of the folder. Object stores have no rename: an object appears whole
when its upload ends, and counts only once a manifest names it. Either way a reader that trusts manifests alone never
sees half a file.
"""

import contextlib
import errno
import functools
import hashlib
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gpt2train.errors import RunError, UserError
from gpt2train.files import fsync
from gpt2train.settings import Settings

TEMPORARY = ".tmp-"  # a killed run can leave such files behind; each step sweeps its own folder


class FileRecord(Settings):
    """One committed file as a manifest names it."""

    name: str
    """Path inside the step's folder, with forward slashes."""
    bytes: int
    """Size on disk."""
    sha256: str
    """Hash of the content, lower-case hex."""
    rows: int | None = None
    """Rows, documents or tokens, by the kind of file; None where it has none."""


class Folder:
    """A folder behind any fsspec URL. Cheap to make, picklable, safe to send to a worker."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url).rstrip("/") or "/"

    def __reduce__(self) -> tuple[type["Folder"], tuple[str]]:
        return Folder, (self.url,)

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.url}/{name}")

    @functools.cached_property
    def _target(self) -> tuple[fsspec.AbstractFileSystem, str]:
        return fsspec.core.url_to_fs(self.url)

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system of this URL."""
        return self._target[0]

    @property
    def is_local(self) -> bool:
        """Whether plain paths work here (memory maps, rename)."""
        return isinstance(self.fs, LocalFileSystem)

    def path(self, name: str = "") -> str:
        """Path of a file for `self.fs`; on local disk an absolute path that anything can open."""
        return f"{self._target[1]}/{name}" if name else self._target[1]

    def size(self, name: str) -> int | None:
        """Size of a file in bytes, or None when it is not there."""
        try:
            return int(self.fs.size(self.path(name)))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading, in binary."""
        return self.fs.open(self.path(name), "rb")

    def read_bytes(self, name: str) -> bytes:
        """The whole content of a file."""
        with self.open(name) as file:
            return file.read()

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Give a local temporary path to write; on leaving without an error it becomes `name`, whole.

        Raises:
            RunError: the disk is full.
            UserError: the place cannot be written.
        """
        target = self.path(name)
        with _clear_write_errors(f"{self.url}/{name}"):
            if self.is_local:
                parent = Path(target).parent
                parent.mkdir(parents=True, exist_ok=True)
            draft = (parent if self.is_local else Path(tempfile.gettempdir())) / f"{TEMPORARY}{secrets.token_hex(6)}"
            try:
                yield draft
                fsync(draft)
                if self.is_local:
                    draft.replace(target)
                    fsync(parent)
                else:
                    self.fs.put_file(str(draft), target)
            finally:
                draft.unlink(missing_ok=True)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""
        with self.writing(name) as draft:
            draft.write_bytes(data)

    def record(self, name: str, rows: int | None = None) -> FileRecord:
        """Describe a committed file for a manifest: reads it once for its hash."""
        with self.open(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        return FileRecord(name=name, bytes=self.size(name) or 0, sha256=digest, rows=rows)

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    def files(self) -> list[str]:
        """Every file below this folder, sorted. For housekeeping only: readers go by manifests."""
        root = self.path()
        return sorted(p.removeprefix(root).lstrip("/") for p in self.fs.find(root)) if self.fs.exists(root) else []

    def check_writable(self) -> None:
        """Write and remove one small file.

        Raises:
            UserError: the folder cannot be made or written; the message says why.
        """
        self.write_bytes(".writable", b"")
        self.remove(".writable")


@contextlib.contextmanager
def _clear_write_errors(place: str) -> Iterator[None]:
    """Turn the operating system's refusals into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"no space left while writing {place}: free some, or give another --output; run again to go on"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"cannot write {place}: {error.strerror}; give another --output") from error
        raise


def read_any(url: str, **options: Any) -> bytes:
    """Read a user's input file from any fsspec URL.

    Raises:
        UserError: it is not there or cannot be read.
    """
    try:
        with fsspec.open(url, "rb", **options) as file:
            return file.read()
    except OSError as error:
        missing = "no such file" if isinstance(error, FileNotFoundError) else None
        raise UserError(f"cannot read {url}: {error.strerror or missing or error}; check the path") from error
