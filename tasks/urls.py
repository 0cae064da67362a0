"""Lists of URLs, one a line, from files, globs and any fsspec URL, compressed or not.

Blank lines and lines that begin with `#` are passed over. What is kept is the line without the white space around it;
whether it is a URL at all is the blacklist's question.
"""

import bz2
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import fsspec
import pyarrow as pa

from gpt2train.errors import UserError
from tasks.storage import read_any


@dataclass(frozen=True)
class UrlList:
    """One list.

    Attributes:
        source: base name of the file; goes into the `source` column.
        urls: its lines, in order.
        sha256: hash of the file as it was read, hex; part of the fingerprint.
    """

    source: str
    urls: tuple[str, ...]
    sha256: str


def read_url_lists(patterns: Sequence[str]) -> list[UrlList]:
    """Read URL lists; the order is that of the patterns, and by name within a glob.

    Args:
        patterns: files, globs, or fsspec URLs (`http://…`, `s3://…`); `.gz`, `.bz2`, `.xz` and `.zst` are decompressed.

    Raises:
        UserError: there is no such file, it cannot be read, or it holds no URL.
    """
    if not patterns:
        raise UserError("no URL list was given; give one with --urls FILE")
    return [read_url_list(place) for pattern in patterns for place in expand(pattern)]


def expand(pattern: str) -> list[str]:
    """The files that a pattern names, sorted.

    Raises:
        UserError: none.
    """
    protocol = pattern.partition("://")[0] if "://" in pattern else "file"
    if protocol in ("http", "https") or not any(sign in pattern for sign in "*?["):
        return [pattern]  # a `?` in a web address is no wildcard
    fs, path = fsspec.core.url_to_fs(pattern)
    found = sorted(name for name in fs.glob(path) if not fs.isdir(name))
    if not found:
        raise UserError(f"no file matches {pattern}; check the pattern given with --urls")
    return [fs.unstrip_protocol(name) if protocol != "file" else name for name in found]


def read_url_list(place: str) -> UrlList:
    """Read one list.

    Raises:
        UserError: it is not there, cannot be read, or holds no URL.
    """
    data = read_any(place)
    text = decompress(data, place).decode("utf-8-sig", errors="replace")
    # Not splitlines(), which also cuts at form feeds and U+2028.
    lines = [line for row in text.split("\n") if (line := row.strip()) and not line.startswith("#")]
    if not lines:
        raise UserError(f"{place} holds no URL; it should hold one a line")
    return UrlList(base_name(place), tuple(lines), hashlib.sha256(data).hexdigest())


def base_name(place: str) -> str:
    """The last part of a path or address, without a query."""
    path = place.partition("?")[0] if "://" in place else place
    return PurePosixPath(path).name or place


def decompress(data: bytes, place: str) -> bytes:
    """Undo the compression that a file's name ends with.

    Raises:
        UserError: the content is not what the name says.
    """
    suffix = PurePosixPath(base_name(place)).suffix.lower()
    undo: Callable[[bytes], bytes] | None = _DECOMPRESS.get(suffix)
    if undo is None:
        return data
    try:
        return undo(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{place} is not a whole {suffix} file ({error}); fetch it again or rename it") from error


def _zstd(data: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()


_DECOMPRESS = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress, ".zst": _zstd}
