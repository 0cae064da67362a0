"""Folders under one output URL, with atomic file writes.

Local disk: temporary name, fsync, rename, fsync of the folder, and of the parent of each new folder. Object stores have
no rename: a file is first written to the machine's temporary folder (TMPDIR), the object appears complete when the
upload ends, and counts only once a manifest names it. In both cases a reader that trusts only manifests never sees a
partial file.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gpt2train.errors import UserError
from gpt2train.settings import Record, in_home
from gpt2train.store.files import DEFAULT_REMEDY, atomic_file, make_folder, no_space, write_error
from gpt2train.store.inner_path import InnerPath
from gpt2train.store.object_stores import BLOCK, is_alive, open_store, translate_store_errors

TEMPORARY = ".tmp-"  # of the files of `atomic_file`; killed runs leave some behind, which each step sweeps
DRAFT = "gpt2train-upload-"  # prefix of files to upload, in the temporary folder; followed by the process id
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


class FileRecord(Record):
    """Entry of a manifest for one committed file."""

    name: InnerPath
    """Path inside the step's folder, with forward slashes."""
    bytes: int
    """Size on disk."""
    sha256: str
    """Hash of the content, lower-case hex."""
    rows: int | None = None
    """Rows, documents or tokens, depending on the kind of file; None for files without any."""


class Folder:
    """A folder behind a path or any fsspec URL. Cheap to create and picklable, so that it can be sent to workers."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url).rstrip("/") or "/"
        if self.url.endswith(":") and str(url).startswith(f"{self.url}//"):
            self.url = str(url)  # without a path: an error names it as it was given
        self._opened: tuple[int, fsspec.AbstractFileSystem, str] | None = None
        self._uploaded: dict[str, tuple[int, str]] = {}  # name -> (bytes, hash) of the files that this object uploaded

    @classmethod
    def given(cls, place: str) -> "Folder":
        """Return the folder that a command line names: a URL, or a path, which need not be absolute."""
        return cls(place if "://" in place else Path(in_home(place)).absolute())

    def __reduce__(self) -> tuple[type["Folder"], tuple[str]]:
        return Folder, (self.url,)

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.url}/{name}")

    @property
    def _target(self) -> tuple[fsspec.AbstractFileSystem, str]:
        # Per process: the connections to a store do not survive a fork.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *open_store(self.url))
        return self._opened[1:]

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system of this URL."""
        return self._target[0]

    @property
    def is_local(self) -> bool:
        """True if the folder is on local disk, so that memory maps and rename work."""
        return isinstance(self.fs, LocalFileSystem)

    def path(self, name: str = "") -> str:
        """Return the path of a file for `self.fs`; on local disk an absolute path."""
        return f"{self._target[1]}/{name}" if name else self._target[1]

    def location(self, name: str = "") -> str:
        """Return the location of a file for other programs: absolute path on local disk, URL in a store."""
        if self.is_local:
            return self.path(name)
        return f"{self.url}/{name}" if name else self.url

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        try:
            with self.translate_errors(name):
                return int(self.fs.size(self.path(name)))
        except (FileNotFoundError, NotADirectoryError, ValueError):  # below a file; a NUL in the path
            return None

    def sizes(self) -> dict[str, int]:
        """Return the size of every file below this folder, sorted by name, from one listing."""
        root = self.path()
        with self.translate_errors():
            found = self.fs.find(root, detail=True) if not self.is_local or self.fs.exists(root) else {}
        below = {path.removeprefix(root).lstrip("/"): int(info["size"]) for path, info in found.items()}
        return dict(sorted(below.items()))

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading, in binary."""
        with self.translate_errors(name):
            if self.is_local:
                return self.fs.open(self.path(name), "rb")
            return self.fs.open(self.path(name), "rb", block_size=BLOCK, cache_type="readahead")

    def read_bytes(self, name: str) -> bytes:
        """Read a whole file."""
        with self.translate_errors(name):
            data: bytes = self.fs.cat_file(self.path(name))
            return data

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Read many small files; from a store concurrently."""
        if self.is_local or len(names) < 2:
            return {name: self.read_bytes(name) for name in names}
        with self.translate_errors():
            found = self.fs.cat([self.path(name) for name in names])
        return {name: found[self.path(name)] for name in names}

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield a local temporary path to write to; on exit without an error it becomes `name` atomically.

        Raises:
            RunError: The disk is full.
            UserError: The file cannot be written.
        """
        target, temporary = Path(self.path(name)), Path(tempfile.gettempdir())
        remedy = DEFAULT_REMEDY if self.is_local else f"set TMPDIR to another disk than {temporary}"
        with translate_write_errors(f"{self.url}/{name}", remedy):
            if not self.is_local:
                draft = temporary / f"{DRAFT}{os.getpid()}-{secrets.token_hex(6)}"
                try:
                    yield draft
                    self._upload(draft, name)
                finally:
                    draft.unlink(missing_ok=True)
                return
            try:
                make_folder(target.parent)
            except (FileNotFoundError, ValueError) as error:  # /proc/x; a NUL in the path
                raise UserError(f"cannot create the folder {target.parent}: {error}; give another --output") from error
            with atomic_file(target) as draft:
                yield draft

    def _upload(self, draft: Path, name: str) -> None:
        """Upload a file, check its size, and keep its hash so that `record` need not read it back."""
        with draft.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = draft.stat().st_size
        with self.translate_errors(name, writing=True):
            self.fs.put_file(str(draft), self.path(name))
        if (uploaded := self.size(name)) != size:
            raise ConnectionError(f"{self.url}/{name} has {uploaded} bytes after an upload of {size}; run again")
        self._uploaded[name] = (size, digest)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        if not self.is_local:
            with self.translate_errors(name, writing=True):
                self.fs.pipe_file(self.path(name), data)
            return
        with self.writing(name) as draft:
            draft.write_bytes(data)

    def record(self, name: str, rows: int | None = None) -> FileRecord:
        """Return the manifest entry of a committed file; reads it once for its hash, unless it was just uploaded."""
        if (uploaded := self._uploaded.pop(name, None)) is not None:
            return FileRecord(name=name, bytes=uploaded[0], sha256=uploaded[1], rows=rows)
        with self.open(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        return FileRecord(name=name, bytes=self.size(name) or 0, sha256=digest, rows=rows)

    def remove(self, *names: str) -> None:
        """Remove files; missing ones are ignored."""
        with self.translate_errors():
            if self.is_local or len(names) == 1:
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        self.fs.rm_file(self.path(name))
            elif names:
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm([self.path(name) for name in names])

    def move(self, name: str, target: str) -> None:
        """Move a file within this folder; in a store by a copy that the store makes."""
        with self.translate_errors(target, writing=True):
            if not self.is_local:
                self.fs.mv(self.path(name), self.path(target))
                return
            make_folder(Path(self.path(target)).parent)
            Path(self.path(name)).replace(self.path(target))

    def files(self) -> list[str]:
        """List every file below this folder, sorted. For housekeeping only: readers must use manifests."""
        return list(self.sizes())

    def check_writable(self, leave: bool = True) -> None:
        """Write and remove one small file, and unless `leave` the folders that were created for it.

        Raises:
            UserError: The folder cannot be created or written; the message has the reason.
        """
        folders: list[Path] = []
        if self.is_local and not leave:
            path = Path(self.path())
            folders = [one for one in (path, *path.parents) if not os.path.exists(one)]  # noqa: PTH110 - raises nothing
        try:
            self.write_bytes(".writable", b"x")
            self.remove(".writable")
        finally:
            for folder in folders:
                with contextlib.suppress(OSError, ValueError):  # never created, or filled by another run since
                    folder.rmdir()

    @contextlib.contextmanager
    def translate_errors(self, name: str = "", writing: bool = False) -> Iterator[None]:
        """Turn a store's errors into errors of one line; pass those of the local disk unchanged."""
        if self.is_local:
            yield
            return
        with translate_store_errors(f"{self.url}/{name}".rstrip("/"), writing):
            yield


def sweep_drafts() -> None:
    """Remove the temporary files of uploads that killed processes of this machine left behind."""
    for draft in Path(tempfile.gettempdir()).glob(f"{DRAFT}*"):
        pid = draft.name.removeprefix(DRAFT).partition("-")[0]
        if pid.isdecimal() and not is_alive(int(pid)):
            with contextlib.suppress(OSError):
                draft.unlink()


@contextlib.contextmanager
def translate_write_errors(location: str, remedy: str = DEFAULT_REMEDY) -> Iterator[None]:
    """Turn the operating system's errors on writing to a path or URL into errors of one line.

    `remedy` is the advice for a full disk, besides freeing space.

    Raises:
        RunError: The disk is full.
        UserError: The file cannot be written there.
    """
    try:
        yield
    except OSError as error:
        if (is_full := no_space(error) is not None) or error.errno in REFUSED:
            raise write_error(location, error, remedy if is_full else DEFAULT_REMEDY) from error
        raise
