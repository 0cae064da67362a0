"""Folders under one output URL, and files that are whole or not there.

Local disk: temporary name, fsync, rename, fsync of the folder. Object stores have no rename: a file is written to the
machine's temporary folder (TMPDIR) first, its object appears whole when the upload ends, and counts only once a
manifest names it. Either way a reader that trusts manifests alone never sees half a file.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gpt2train.errors import UserError
from gpt2train.files import ELSEWHERE, FULL, fsync, write_error
from gpt2train.settings import Settings
from tasks.stores import BLOCK, clear_store_errors, is_alive, open_store

TEMPORARY = ".tmp-"  # a killed run can leave such files behind; each step sweeps its own folder
DRAFT = "gpt2train-upload-"  # of an upload, in the temporary folder, with the process that writes it
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


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
        self._opened: tuple[int, fsspec.AbstractFileSystem, str] | None = None
        self._written: dict[str, tuple[int, str]] = {}  # name -> (bytes, hash) of what this object uploaded

    def __reduce__(self) -> tuple[type["Folder"], tuple[str]]:
        return Folder, (self.url,)

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.url}/{name}")

    @property
    def _target(self) -> tuple[fsspec.AbstractFileSystem, str]:
        # By process: the connections of a store do not survive a fork.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *open_store(self.url))
        return self._opened[1:]

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

    def place(self, name: str) -> str:
        """What opens a file from elsewhere: its absolute path on local disk, its URL in a store."""
        return self.path(name) if self.is_local else f"{self.url}/{name}"

    def size(self, name: str) -> int | None:
        """Size of a file in bytes, or None when it is not there."""
        try:
            with self.clear(name):
                return int(self.fs.size(self.path(name)))
        except FileNotFoundError:
            return None

    def sizes(self) -> dict[str, int]:
        """Size of every file below this folder, sorted by name, by one listing."""
        root = self.path()
        with self.clear():
            found = self.fs.find(root, detail=True) if not self.is_local or self.fs.exists(root) else {}
        below = {path.removeprefix(root).lstrip("/"): int(info["size"]) for path, info in found.items()}
        return dict(sorted(below.items()))

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading, in binary."""
        with self.clear(name):
            if self.is_local:
                return self.fs.open(self.path(name), "rb")
            return self.fs.open(self.path(name), "rb", block_size=BLOCK, cache_type="readahead")

    def read_bytes(self, name: str) -> bytes:
        """The whole content of a file."""
        with self.clear(name):
            data: bytes = self.fs.cat_file(self.path(name))
            return data

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """The whole content of many small files; from a store many at a time."""
        if self.is_local or len(names) < 2:
            return {name: self.read_bytes(name) for name in names}
        with self.clear():
            found = self.fs.cat([self.path(name) for name in names])
        return {name: found[self.path(name)] for name in names}

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Give a local temporary path to write; on leaving without an error it becomes `name`, whole.

        Raises:
            RunError: the disk is full.
            UserError: the place cannot be written.
        """
        target = self.path(name)
        room = ELSEWHERE if self.is_local else f"set TMPDIR to another disk than {tempfile.gettempdir()}"
        with clear_write_errors(f"{self.url}/{name}", room):
            parent = Path(target).parent if self.is_local else Path(tempfile.gettempdir())
            try:
                parent.mkdir(parents=True, exist_ok=True)
            except (FileNotFoundError, ValueError) as error:  # /proc/x; a NUL in the path
                raise UserError(f"cannot make the folder {parent}: {error}; give another --output") from error
            draft = parent / f"{TEMPORARY}{secrets.token_hex(6)}"
            if not self.is_local:
                draft = parent / f"{DRAFT}{os.getpid()}-{secrets.token_hex(6)}"
            try:
                yield draft
                if self.is_local:
                    fsync(draft)
                    draft.replace(target)
                    fsync(parent)
                else:
                    self._upload(draft, name)
            finally:
                draft.unlink(missing_ok=True)

    def _upload(self, draft: Path, name: str) -> None:
        """Upload a file and look whether it came whole. Its hash is taken here: no need to read it back for that."""
        with draft.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = draft.stat().st_size
        with self.clear(name, writing=True):
            self.fs.put_file(str(draft), self.path(name))
        if (there := self.size(name)) != size:
            raise ConnectionError(f"{self.url}/{name} holds {there} bytes after an upload of {size}; run again")
        self._written[name] = (size, digest)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""
        if not self.is_local:
            with self.clear(name, writing=True):
                self.fs.pipe_file(self.path(name), data)
            return
        with self.writing(name) as draft:
            draft.write_bytes(data)

    def record(self, name: str, rows: int | None = None) -> FileRecord:
        """Describe a committed file for a manifest: reads it once for its hash, unless it was just uploaded."""
        if (uploaded := self._written.pop(name, None)) is not None:
            return FileRecord(name=name, bytes=uploaded[0], sha256=uploaded[1], rows=rows)
        with self.open(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        return FileRecord(name=name, bytes=self.size(name) or 0, sha256=digest, rows=rows)

    def remove(self, *names: str) -> None:
        """Remove files; missing ones are fine."""
        with self.clear():
            if self.is_local or len(names) == 1:
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        self.fs.rm_file(self.path(name))
            elif names:
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm([self.path(name) for name in names])

    def files(self) -> list[str]:
        """Every file below this folder, sorted. For housekeeping only: readers go by manifests."""
        return list(self.sizes())

    def check_writable(self) -> None:
        """Write and remove one small file.

        Raises:
            UserError: the folder cannot be made or written; the message says why.
        """
        self.write_bytes(".writable", b"x")
        self.remove(".writable")

    @contextlib.contextmanager
    def clear(self, name: str = "", writing: bool = False) -> Iterator[None]:
        """Errors of a store in one line; those of the local disk as they are."""
        if self.is_local:
            yield
            return
        with clear_store_errors(f"{self.url}/{name}".rstrip("/"), writing):
            yield


def sweep_drafts() -> None:
    """Remove what killed processes of this machine left of uploads in the temporary folder."""
    for draft in Path(tempfile.gettempdir()).glob(f"{DRAFT}*"):
        pid = draft.name.removeprefix(DRAFT).partition("-")[0]
        if pid.isdigit() and not is_alive(int(pid)):
            with contextlib.suppress(OSError):
                draft.unlink()


@contextlib.contextmanager
def clear_write_errors(place: str, room: str = ELSEWHERE) -> Iterator[None]:
    """Turn the operating system's refusals into one line that says what to do.

    Args:
        room: what else than to free some makes room on a full disk.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (*FULL, *REFUSED):
            raise write_error(place, error, room if error.errno in FULL else ELSEWHERE) from error
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
