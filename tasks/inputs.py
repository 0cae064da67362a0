"""The user's input files: found by path, glob, folder or any fsspec URL, and read as streams.

No file is held in memory whole, packed or not: a list of 10^9 lines is read in the memory of one block, and a line
over its bound is passed over as it comes.
"""

import bz2
import contextlib
import functools
import gzip
import hashlib
import io
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from gpt2train.errors import UserError

BLOCK = 2**20  # bytes read at a time
PACKED = (".gz", ".bz2", ".xz", ".zst")
TAGS = ("ETag", "etag", "md5Hash", "content_md5", "crc32c", "generation", "Content-MD5", "Digest", "checksum")


@dataclass(frozen=True)
class InputFile:
    """One input file.

    Attributes:
        place: path or URL, as `open_input` takes it.
        name: base name, or the path below the folder that was given; goes into the `source` column.
        bytes: size as it lies there, packed; None where the store does not tell.
        identity: what a step's fingerprint takes of it: the hash of its content, or size and tag of a store that
            tells them. The same wherever the file lies on local disk.
    """

    place: str
    name: str
    bytes: int | None
    identity: str


def find_inputs(patterns: Sequence[str], flag: str, suffixes: Sequence[str]) -> list[InputFile]:
    """The files that the patterns name: in the order of the patterns, by path within one; each file once.

    Args:
        patterns: files, globs, folders (searched with all below them), or fsspec URLs of these.
        flag: the option that gave the patterns; named in errors.
        suffixes: endings that a folder is searched for, lower case with the dot, packed (`.txt.gz`) or not. A file
            that is named itself may end as it likes.

    Raises:
        UserError: a pattern matches nothing, or a file cannot be read.
    """
    if not patterns:
        raise UserError(f"no file was given; give one with {flag}")
    found: dict[str, str] = {}
    for pattern in patterns:
        for place, name in _expand(pattern, flag, suffixes):
            found.setdefault(place, name)
    return [_describe(place, name, flag) for place, name in found.items()]


@contextlib.contextmanager
def open_input(place: str) -> Iterator[IO[bytes]]:
    """Open a file for reading from its beginning, unpacked by its ending (.gz .bz2 .xz .zst).

    Raises:
        UserError: on opening or while reading: it cannot be read, or is no whole file of its kind. Names the place.
    """
    with contextlib.ExitStack() as stack:
        with _clear_errors(place):
            raw: IO[bytes] = stack.enter_context(fsspec.open(place, "rb"))
            unpacked = _unpack(raw, suffix_of(place))
        yield stack.enter_context(io.BufferedReader(_Clear(unpacked, place), BLOCK))


def read_lines(stream: IO[bytes], longest: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines with their numbers, from 1, without the newline; None for a line over the bound, which is never held.

    Args:
        stream: as `open_input` gives it.
        longest: bytes of the longest line that is wanted.
    """
    number, kept, over = 1, b"", False  # the line that goes on: what is held of it, and whether it is past the bound
    while block := stream.read(BLOCK):
        head, *rest = block.split(b"\n")
        over = over or len(kept) + len(head) > longest
        kept = b"" if over else kept + head
        for line in rest:
            yield number, None if over else kept
            number, kept, over = number + 1, line, len(line) > longest
        kept = b"" if over else kept
    if kept or over:
        yield number, None if over else kept


def base_name(place: str) -> str:
    """The last part of a path or address, without a query."""
    path = place.partition("?")[0] if "://" in place else place
    return PurePosixPath(path).name or place


def suffix_of(place: str) -> str:
    """The last ending of a file's name, with the dot, lower case; empty where it has none."""
    return PurePosixPath(base_name(place)).suffix.lower()


def kind_of(place: str) -> str:
    """The ending that tells a file's format: the one before `.gz` and the like."""
    name = PurePosixPath(base_name(place).lower())
    return PurePosixPath(name.stem).suffix if name.suffix in PACKED else name.suffix


def _expand(pattern: str, flag: str, suffixes: Sequence[str]) -> list[tuple[str, str]]:
    """The places that a pattern names, sorted, each with its name."""
    if pattern.startswith(("http://", "https://")):
        return [(pattern, base_name(pattern))]  # a `?` in a web address is no wildcard, and the web has no folders
    folder = ""
    with _clear_errors(pattern):
        fs, path = fsspec.core.url_to_fs(pattern)
        if fs.isdir(path):
            folder = f"{path.rstrip('/')}/"
            names = [name for name in fs.find(path) if kind_of(name) in suffixes]
            missing = f"no file in {pattern} ends in {', '.join(suffixes)}; {_check('folder', pattern, flag)}"
        elif not any(sign in pattern for sign in "*?[") or fs.exists(path):
            return [(pattern, base_name(pattern))]
        else:
            names = [name for name in fs.glob(path) if not fs.isdir(name)]
            missing = f"no file matches {pattern}; {_check('pattern', pattern, flag)}"
    if not names:
        raise UserError(missing)
    local = isinstance(fs, LocalFileSystem)
    return [
        (
            name if local else str(fs.unstrip_protocol(name)),
            name.removeprefix(folder) if folder else base_name(name),  # two folders may hold a file of the same name
        )
        for name in sorted(names)
    ]


def _check(what: str, place: str, flag: str) -> str:
    """The remedy for a place where nothing is. A worker has a folder of its own, which need not be the user's."""
    relative = "://" not in place and not Path(place).expanduser().is_absolute()
    return f"check the {what} given with {flag}" + (f", which begins in {Path.cwd()}" if relative else "")


def _describe(place: str, name: str, flag: str) -> InputFile:
    with _clear_errors(place, _check("path", place, flag)):
        fs, path = fsspec.core.url_to_fs(place)
        if isinstance(fs, LocalFileSystem):
            stat = Path(path).stat()
            return InputFile(place, name, stat.st_size, _hash_once(path, stat.st_size, stat.st_mtime_ns))
        info: dict[str, Any] = fs.info(path)
        size = info.get("size")
        tags = [f"{name}={info[name]}" for name in TAGS if info.get(name)]
        if size is not None and tags:
            return InputFile(place, name, size, f"size={size} {' '.join(tags)}")
        with fs.open(path, "rb") as file:
            return InputFile(place, name, size, hash_of(file))


@functools.lru_cache(maxsize=100_000)
def _hash_once(path: str, size: int, changed: int) -> str:
    """Hash of a local file; a flow asks before it starts and when it begins, and a large list takes its time."""
    with Path(path).open("rb") as file:
        return hash_of(file)


def hash_of(stream: IO[bytes]) -> str:
    """SHA-256 of the rest of a stream, hex."""
    state = hashlib.sha256()
    while block := stream.read(BLOCK):
        state.update(block)
    return state.hexdigest()


@contextlib.contextmanager
def _clear_errors(place: str, remedy: str = "check the path") -> Iterator[None]:
    """Turn what a file system or a store raises into one line; stores have errors of their own kinds."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        missing = "no such file" if isinstance(error, FileNotFoundError) else None
        said = getattr(error, "strerror", None) or missing or str(error) or type(error).__name__
        raise UserError(f"cannot read {place}: {said}; {remedy}") from error


class _Clear(io.RawIOBase):
    """Reads from a stream; what goes wrong becomes a `UserError` that names the place."""

    def __init__(self, stream: Any, place: str) -> None:
        self._stream, self._place = stream, place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        suffix = suffix_of(self._place)
        try:
            data = self._stream.read(len(buffer))
        except Exception as error:
            if suffix not in PACKED:
                raise UserError(f"cannot read {self._place}: {error}; check the path") from error
            raise UserError(
                f"{self._place} is not a whole {suffix} file ({error}); fetch it again or rename it"
            ) from error
        buffer[: len(data)] = data
        return len(data)


def _unpack(raw: IO[bytes], suffix: str) -> Any:
    """A stream of what a packed stream holds."""
    match suffix:
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
        case ".bz2":
            return bz2.BZ2File(raw)
        case ".xz":
            return lzma.LZMAFile(raw)
        case ".zst":
            return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return raw
