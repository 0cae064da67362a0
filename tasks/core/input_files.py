"""The user's input files: found by path, glob, folder or any fsspec URL, and read as streams.

No file is ever completely in memory, compressed or not: a list of 10^9 lines needs the memory of one block, and a line
longer than its limit is skipped while it is read.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import logging
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gpt2train.data.documents import CARD_HEAD, WIKI, files_below, is_hidden, left_out
from gpt2train.data.packed_file import PACKED, FaultLast, FrameError, unpack
from gpt2train.errors import (
    LFS_POINTER,
    DamagedFileError,
    RunError,
    TransientError,
    UserError,
    check_no_pointer,
    is_io_failure,
    redact,
)
from gpt2train.settings import in_home
from gpt2train.store.folder import Folder
from gpt2train.store.hub import allow, pinned, repository_of
from gpt2train.store.object_stores import BLOCK as STORE_BLOCK
from gpt2train.store.object_stores import MODULES, check_store_url
from tasks.core.hub_splits import files_of_split, split_of

log = logging.getLogger("gpt2train")

BLOCK = 2**20  # bytes read at a time
WIKI_KIND = "wiki_00"
MAX_ENDINGS = 10  # of files of a folder that are not read, in the log
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)  # and bare `OSError`s of bz2 and zstd
TAGS = (
    *("ETag", "etag", "md5Hash", "content_md5", "crc32c", "generation", "Content-MD5", "Digest", "checksum"),
    "blob_id",
)
_VERSION = re.compile(r"(?:\?versionId=[^/?#]*|#\d+)\Z")  # of S3, and of Google's store


@dataclass(frozen=True)
class InputFile:
    """One input file."""

    location: str  # path or URL, for `open_input`
    name: str  # base name, or path below the given folder; the value of the `source` column
    bytes: int | None  # size on disk (compressed); None if the store does not report it
    # Identity for fingerprints: the hash of the content, or size and tag if a store reports them. It does not depend on
    # the path of a local file.
    identity: str
    # Reason for which a file of a folder or glob cannot be read, else None. It is then also the `identity`.
    fault: str | None = None
    # Path or URL of a JSON file with the URL of a crawler's text, else None; `identity` includes it.
    meta: str | None = None
    changed: int | None = None  # nanoseconds of a local file's last change, when its hash was taken


def find_inputs(
    patterns: Sequence[str],
    flag: str,
    suffixes: Sequence[str],
    *,
    faults: bool = False,
    check: Callable[[str], None] = lambda location: None,
) -> list[InputFile]:
    """Find the files that match the patterns: in their order, sorted by path within each, without repeats.

    Args:
        patterns: Files, globs, folders (searched recursively), or fsspec URLs of these.
        flag: Option that the patterns come from, for messages.
        suffixes: Suffixes that are searched for in a folder, lower case with the dot; compressed files (`.txt.gz`)
            match too. A file that is named itself can have any suffix.
        faults: Return an unreadable file of a folder or glob with its `fault`, instead of raising.
        check: Called with the location of each file; raises for one that is no such input.

    Raises:
        UserError: A pattern matches nothing, or a file cannot be read.
    """
    if not patterns:
        raise UserError(f"no file was given; give one with {flag}")
    found: dict[str, tuple[str, str, bool]] = {}
    for pattern in patterns:
        if not pattern.strip():  # such as "$UNSET", which would be the working folder
            raise UserError(f"a path given with {flag} is empty; leave it out, or give . for the working folder")
        if "://" not in pattern and os.path.isfile(pattern):  # noqa: PTH113 - a path too long for Path is none
            check(pattern)  # before a large file is read for its hash
        for location, name in _expand(pattern, flag, suffixes):
            if (readable := _readable(location)) != location and not (faults and location != pattern):
                raise UserError(f"the name of {readable} is not valid UTF-8; rename the file, or its folder")
            found.setdefault(_absolute(location), (location, name, location != pattern))
    files = [
        (faults and listed and _faulty(location, name)) or _describe(location, name, flag)
        for location, name, listed in found.values()
    ]
    for file in files:
        check(file.location)
    return files


def _absolute(location: str) -> str:
    """Return a path or URL in the form by which it is compared with others: links are files of their own."""
    path = location.removeprefix("file://")
    return location if "://" in path else os.path.normpath(Path(in_home(path)).absolute())


def _readable(location: str) -> str:
    """Return a path that can be written as UTF-8: bytes that are not, as escapes."""
    return location.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _faulty(location: str, name: str) -> InputFile | None:
    """Return the entry of an unreadable local file; None for a readable one."""
    if "://" in location:
        return None
    path = Path(location)
    try:
        if _readable(location) != location:
            fault = "its name is not valid UTF-8"
        elif not stat.S_ISREG(path.stat().st_mode):  # to open a FIFO would wait for a writer
            fault = "it is no regular file"
        else:
            path.open("rb").close()
            return None
    except OSError as error:
        dangling = path.is_symlink() and isinstance(error, FileNotFoundError)
        fault = "it is a link to a file that is not there" if dangling else str(error.strerror or error)
    return InputFile(_readable(location), _readable(name), 0, f"unreadable: {fault}", fault)


def commits_of(files: Iterable[InputFile]) -> dict[str, str]:
    """Return the commits at which files of the hub are read, by the addresses of their repositories."""
    found: dict[str, set[str]] = {}
    for name, commit in filter(None, (repository_of(file.location) for file in files)):
        found.setdefault(name, set()).add(commit)
    return {name: ", ".join(sorted(found[name])) for name in sorted(found)}


@contextlib.contextmanager
def open_input(location: str) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed according to its suffix, one of `PACKED`.

    Raises:
        UserError: On opening or while reading, the file cannot be read; the message names the file.
        DamagedFileError: Its compressed data are damaged or truncated; all bytes before that were read.
    """
    with contextlib.ExitStack() as stack:
        with _translate_errors(location):
            raw: IO[bytes] = stack.enter_context(_open(location))
            unpacked = unpack(raw, suffix_of(location))
        yield stack.enter_context(io.BufferedReader(ErrorTranslatingFile(unpacked, location), BLOCK))


def open_raw(location: str, *, columns: bool = False) -> Any:
    """Open a file as it is, for `with`, to be read at any of its bytes.

    With `columns` it is read in several places in turn: of a URL the blocks around them are kept.

    Raises:
        UserError: A web server sends it as a stream, of no known length.
    """
    kept = {"block_size": STORE_BLOCK, "cache_type": "blockcache", "cache_options": {"maxblocks": 8}}
    file = _open(location, **kept if columns and "://" in location else {})
    if getattr(file, "size", 0) is None:
        raise UserError(f"cannot read {location} in parts: its server gives no length; download it first")
    return file


def _open(location: str, **options: Any) -> Any:
    """Open a file as it is; a worker on another machine has not been asked for its address before."""
    allow(location)
    fs, path = file_system(location)
    file = fs.open(path, "rb", **options)
    with contextlib.suppress(AttributeError):
        file.kept = fs  # one of an archive closes its files when nothing refers to it
    return file


def file_system(location: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a path or URL, and the path in it; `::` and `file:` are parts of a local name."""
    if "://" not in location:
        return LocalFileSystem(), str(Path(in_home(location)).absolute())
    found: tuple[fsspec.AbstractFileSystem, str] = fsspec.core.url_to_fs(location)
    return found


def check_unchanged(file: InputFile) -> None:
    """Check after reading a local file that it is the one whose hash is part of the step's fingerprint.

    Raises:
        RunError: It has been written or replaced since.
    """
    if file.changed is None:
        return
    with contextlib.suppress(OSError):
        status = Path(in_home(file.location)).stat()
        if (status.st_size, status.st_mtime_ns) == (file.bytes, file.changed):
            return
    raise RunError(f"{file.location} has changed since the run began; run the command again")


def read_any(location: str) -> bytes:
    """Read a whole file as it is.

    Raises:
        UserError: The file does not exist or cannot be read.
    """
    with _translate_errors(location):
        check_store_url(location)
        with _open(location) as file:
            return bytes(file.read())


def base_name(location: str) -> str:
    """Return the last component of a path or URL, without a web address's query or an object's version."""
    if "://" not in location:
        return PurePosixPath(location).name or location
    if not location.startswith(("http://", "https://")):  # `?` and `#` are characters of a file's name
        inner = location.partition("::")[0]  # of `zip://a.txt::s3://bucket/b.zip`
        return PurePosixPath(_VERSION.sub("", inner if "://" in inner else location)).name
    address = redact(location)  # the last component of `https://user:password@host` is not a file name
    return PurePosixPath(re.split("[?#]", address)[0]).name or address


def suffix_of(location: str) -> str:
    """Return the last suffix of a file's name, with the dot, in lower case; empty if it has none."""
    return PurePosixPath(base_name(location)).suffix.lower()


def kind_of(location: str) -> str:
    """Return the suffix of a file's format, which precedes `.gz` and other compression suffixes.

    That of the files `wiki_00`, `wiki_01`, … of wikiextractor, which have none, is `WIKI_KIND`.
    """
    name = PurePosixPath(base_name(location).lower())
    name = PurePosixPath(name.stem) if name.suffix in PACKED else name
    return WIKI_KIND if WIKI.fullmatch(name.name) else name.suffix


def where_to_read(files: Sequence[InputFile], root: Folder) -> Literal["process", "thread"]:
    """Return where batches that read these files run: a cluster's workers can read the output, but lack local disks."""
    return "process" if root.is_local or all("://" in file.location for file in files) else "thread"


def _expand(pattern: str, flag: str, suffixes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the sorted paths or URLs that match a pattern, each with its name."""
    if pattern.startswith(("http://", "https://")):
        return [(pattern, base_name(pattern))]  # in a web URL `?` is not a wildcard, and there are no folders
    if dataset := split_of(pattern):
        return _of_split(*dataset, flag, suffixes)
    pattern = pinned(pattern)
    with _translate_errors(pattern):
        check_store_url(pattern)
        fs, path = file_system(pattern)
        if fs.isdir(path):
            names = _below(fs, path, suffixes)
            missing = f"no file in {pattern} ends in {', '.join(suffixes)}; {_check('folder', pattern, flag)}"
        elif not any(wildcard in pattern for wildcard in "*?[") or fs.exists(path):
            return [(pattern, base_name(pattern))]
        else:
            # Brackets are also parts of names of folders.
            found = fs.glob(path) or fs.glob(path.replace("[", "[[]"))
            folders = [name for name in found if fs.isdir(name)]
            names = {name: base_name(name) for name in found if name not in folders}
            for folder in folders if "**" not in path else ():  # which matches the files in them too
                if not is_hidden(base_name(folder)):
                    names |= {
                        name: f"{base_name(folder)}/{inner}" for name, inner in _below(fs, folder, suffixes).items()
                    }
            missing = f"no file matches {pattern}; {_check('pattern', pattern, flag)}"
    if not names:
        raise UserError(missing)
    if isinstance(fs, LocalFileSystem):
        return [(name, names[name]) for name in sorted(names)]
    first, mark, rest = pattern.partition("::")
    outer = mark + rest if "://" in first else ""  # the archive that the files are in
    return [(f"{fs.unstrip_protocol(name)}{outer}", names[name]) for name in sorted(names)]


def _below(fs: fsspec.AbstractFileSystem, folder: str, suffixes: Sequence[str]) -> dict[str, str]:
    """Find the files of a folder with these suffixes; the values are their paths in it, since two may have one name."""
    start = f"{folder.rstrip('/')}/"
    is_local = isinstance(fs, LocalFileSystem)
    every = files_below(folder) if is_local else fs.find(folder)
    shown = {name: inner for name in every if not is_hidden(inner := name.removeprefix(start))}
    _log_others(folder, [inner for name, inner in shown.items() if kind_of(name) not in suffixes])
    found = {name: inner for name, inner in shown.items() if kind_of(name) in suffixes}
    readable = [name for name in found if not is_local or Path(name).is_file()]
    for name in left_out(readable, lambda name: fs.cat_file(name, end=CARD_HEAD)):
        del found[name]
    return found


def _log_others(folder: str, names: Sequence[str]) -> None:
    """Log how many files of a folder are not read, by their endings, with one name of each."""
    endings: dict[str, list[str]] = {}
    for name in sorted(names):
        kind, suffix = kind_of(name), suffix_of(name)
        endings.setdefault((kind + suffix if suffix in PACKED else suffix) or "none", []).append(name)
    if ordered := sorted(endings.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        shown = [f"{ending} {len(found):,} ({found[0]})" for ending, found in ordered[:MAX_ENDINGS]]
        more = f" and {len(ordered) - MAX_ENDINGS} more" if len(ordered) > MAX_ENDINGS else ""
        log.info("%s: not read, by their endings: %s%s", folder, ", ".join(shown), more)


def _of_split(dataset: str, split: str, flag: str, suffixes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the URLs of the files of a split of a dataset of the hub, each with its path in the dataset."""
    address = pinned(dataset)
    with _translate_errors(address):
        fs, root = fsspec.core.url_to_fs(address)
        found = files_of_split(fs, root, split, kind_of)
    if not found or kind_of(found[0]) not in suffixes:
        missing = f"its files end in {kind_of(found[0]) or found[0]}" if found else "it has no files"
        raise UserError(f"{address} {split}: {missing}, not in {', '.join(suffixes)}; {_check('split', dataset, flag)}")
    return [(str(fs.unstrip_protocol(path)), path.removeprefix(f"{root}/")) for path in found]


def _check(what: str, location: str, flag: str) -> str:
    """Return the remedy for a missing file, with the working folder, since a worker's may not be the user's."""
    relative = "://" not in location and not Path(in_home(location)).is_absolute()
    return f"check the {what} given with {flag}" + (f", relative to {Path.cwd()}" if relative else "")


def _describe(location: str, name: str, flag: str) -> InputFile:
    with _translate_errors(location, _check("path", location, flag)):
        fs, path = file_system(location)
        if isinstance(fs, LocalFileSystem):
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode):  # the hash would wait for a writer, or take what is to be read
                raise UserError(f"{location} is a pipe or device, which is read only once; write it to a file first")
            with Path(path).open("rb") as file:
                check_no_pointer(file.read(len(LFS_POINTER)), location)
            found = _hash_once(path, status.st_size, status.st_mtime_ns)
            return InputFile(location, name, status.st_size, found, changed=status.st_mtime_ns)
        info: dict[str, Any] = fs.info(path)
        size = info.get("size")
        if large := info.get("lfs"):  # of a hub, which knows the hash of a large file
            return InputFile(location, name, size, large["sha256"])
        tags = [f"{name}={info[name]}" for name in TAGS if info.get(name)]
        if size is not None and tags:
            return InputFile(location, name, size, f"size={size} {' '.join(tags)}")
        with fs.open(path, "rb") as file:
            return InputFile(location, name, size, hashlib.file_digest(file, "sha256").hexdigest())


@functools.lru_cache(maxsize=100_000)
def _hash_once(path: str, size: int, changed: int) -> str:
    """Return the hash of a local file, cached: a flow needs it twice, and hashing a large list takes long."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _translate_errors(location: str, remedy: str = "check the path") -> Iterator[None]:
    """Turn any error of a file system or store into a `UserError` of one line; stores raise errors of many types."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        missing = "no such file" if isinstance(error, FileNotFoundError) else None
        if missing and (cause := error.__cause__) and getattr(cause, "status", 0) != 404:  # of fsspec, for any fault
            missing = str(cause) or type(cause).__name__
        reason = getattr(error, "strerror", None) or missing or str(error) or type(error).__name__
        raise UserError(f"cannot read {location}: {redact(reason, location)}; {remedy}") from error


def unreachable(location: str, error: Exception) -> TransientError | None:
    """Return the error of a store or hub that has not answered after its library's own attempts; None for another."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in (408, 429):  # another attempt would end alike
        return None
    library = type(error).__module__.partition(".")[0]
    if isinstance(error, ConnectionError | TimeoutError) or library in (*MODULES, "httpx", "huggingface_hub"):
        return TransientError(f"cannot read {location}: {redact(str(error), location)}; run again to go on")
    return None


class ErrorTranslatingFile(io.RawIOBase):
    """Stream whose read errors become a `UserError` that names the file."""

    def __init__(self, stream: Any, location: str) -> None:
        self._location, self._stream = location, FaultLast(stream)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        try:
            return self._stream.readinto(buffer)
        except MemoryError:  # of this machine, not of the file
            raise
        except Exception as error:
            if away := unreachable(self._location, error):
                raise away from error
            suffix, reason = suffix_of(self._location), redact(str(error), self._location)
            if isinstance(error, FrameError):
                raise DamagedFileError(f"{self._location} {error}", str(error)) from error
            is_damage = isinstance(error, DAMAGE) or (isinstance(error, OSError) and not is_io_failure(error))
            if suffix not in PACKED or not is_damage:
                raise UserError(f"cannot read {self._location}: {reason}; check the path") from error
            fault = f"not a complete {suffix} file ({reason})"
            raise DamagedFileError(f"{self._location} is {fault}; fetch it again or rename it", fault) from error
