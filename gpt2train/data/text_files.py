"""Documents of loose files: JSON lines, single texts, tar archives of both, in any common compression, and Parquet.

Archives are read as streams and nothing is unpacked to the disk. A compressed member is opened too, so that
`openwebtext.tar.xz`, whose members are compressed archives of `.txt` files, is read as it is published.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple

from gpt2train.data.zstd_file import ZstdFile
from gpt2train.errors import UserError

MAX_DOCUMENT = 1 << 28  # bytes of a line or a text; a longer one is rejected, so that no file can fill the memory
MAX_DEPTH = 3  # archives within archives, and compressions of one stream: a gzip file can contain itself
HEAD = 512  # bytes from which the kind of a stream is seen: the first header of a tar archive
PARQUET_MAGIC = b"PAR1"
PACKED = (".gz", ".bz2", ".xz", ".zst", ".tgz", ".tar")
UNKNOWN = {
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf": "7z",
    b"Rar!": "rar",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress",
}
UNKNOWN_NAMES = (".zip", ".7z", ".rar", ".lz4", ".lzma", ".z", ".br", ".sz", ".lzo")
JSON_NAMES = (".json", ".jsonl", ".ndjson")
REMEDY = "give Parquet, or JSON lines or .txt, alone or in .tar, packed by gzip, bzip2, xz or zstd"
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, ValueError)


class Row(NamedTuple):
    """One document as it is stored."""

    place: str
    """File, and member of an archive after `!`."""
    number: int
    """Line in JSON lines or row in Parquet, from 1; 0 for a text of its own."""
    kind: Literal["json", "text", "cell", "too_large", "null", "not_text"]
    """The last three have no content."""
    content: bytes


def expand(inputs: list[Path]) -> list[Path]:
    """List the files of the inputs: a folder has all of its files, by name.

    Raises:
        UserError: an input does not exist, or a folder has no file.
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
            if not files:
                raise UserError(f"{path} has no files; {REMEDY}")
            found += files
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"there is no file {path}; check the path")
    return found


def read_rows(path: Path, key: str) -> Iterator[Row]:
    """Read the documents of a file in their order; `key` is the column of the texts in Parquet.

    Raises:
        UserError: the file cannot be read, is damaged, or is of an unknown kind or compression.
    """
    if path.suffix.lower() in UNKNOWN_NAMES:
        raise UserError(f"{path} has an unknown compression ({path.suffix}); {REMEDY}")
    try:
        with path.open("rb") as file:
            if file.read(4) == PARQUET_MAGIC:
                yield from _cells(path, key)
                return
            file.seek(0)
            yield from _rows(file, str(path), depth=0)
    except DAMAGE as error:
        if isinstance(error, UserError):
            raise
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise UserError(f"cannot read {path}: {reason}; copy the file again") from error


def _rows(file: IO[bytes], place: str, depth: int) -> Iterator[Row]:
    """Documents of a stream, unpacked as its first bytes require."""
    head, stream = _peek(file)
    name = place.lower()
    for _ in range(MAX_DEPTH):
        packed = _unpacked(head, stream, place)
        if packed is None:
            break
        head, stream = _peek(packed)
        name = name.removesuffix(PurePosixPath(name).suffix) if name.endswith(PACKED) else name
    if head[257:262] == b"ustar":
        yield from _members(stream, place, depth)
    elif name.endswith(".txt"):
        content = stream.read(MAX_DOCUMENT + 1)
        yield Row(place, 0, "text", content) if len(content) <= MAX_DOCUMENT else Row(place, 0, "too_large", b"")
    elif not head or head.lstrip()[:1] == b"{" or (name.endswith(JSON_NAMES) and head.lstrip()[:1] != b"["):
        yield from _lines(stream, place)
    elif depth:
        yield Row(place, 0, "not_text", b"")
    elif head.lstrip()[:1] == b"[":
        raise UserError(f"{place} is a JSON array; write one object per line")
    else:
        raise UserError(f"{place} is of an unknown kind; {REMEDY}")


def _cells(path: Path, key: str) -> Iterator[Row]:
    """Rows of a Parquet file."""
    from gpt2train.data.parquet_column import read_cells  # imports pyarrow (0.1 s)

    place = str(path)
    for cell in read_cells(place, lambda: path.open("rb"), key, (), MAX_DOCUMENT):
        if not cell.fits or (cell.text is not None and cell.text.size > MAX_DOCUMENT):
            yield Row(place, cell.number, "too_large", b"")
        elif cell.text is None:
            yield Row(place, cell.number, "null", b"")
        else:
            yield Row(place, cell.number, "cell", cell.text.to_pybytes())


def _lines(stream: IO[bytes], place: str) -> Iterator[Row]:
    """Lines that are not blank; one that is too long is skipped to its end."""
    number = 0
    while line := stream.readline(MAX_DOCUMENT + 1):
        number += 1
        if len(line) > MAX_DOCUMENT and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_DOCUMENT)) and not rest.endswith(b"\n"):
                pass
            yield Row(place, number, "too_large", b"")
        elif not line.isspace():
            yield Row(place, number, "json", line)


def _members(stream: IO[bytes], place: str, depth: int) -> Iterator[Row]:
    """Documents of a tar archive, in its order; other members are named as rejected."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if not member.isfile():
                continue
            where, name = f"{place}!{member.name}", member.name.lower()
            known = name.endswith((".txt", *JSON_NAMES)) or (name.endswith(PACKED) and depth < MAX_DEPTH)
            content = archive.extractfile(member) if known else None
            if content is None:
                yield Row(where, 0, "not_text", b"")
            else:
                yield from _rows(content, where, depth + 1)


def _unpacked(head: bytes, stream: IO[bytes], place: str) -> IO[bytes] | None:
    """Stream without its compression, None if it has none."""
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if head.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(stream)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return ZstdFile(stream)  # type: ignore[return-value]
    for magic, name in UNKNOWN.items():
        if head.startswith(magic):
            raise UserError(f"{place} has an unknown compression ({name}); {REMEDY}")
    return None


def _peek(file: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    """First bytes of a stream, and the whole stream."""
    head = b""
    while len(head) < HEAD and (more := file.read(HEAD - len(head))):
        head += more
    return head, io.BufferedReader(_Prepended(head, file), 1 << 20)


class _Prepended(io.RawIOBase):
    """Bytes that were read already, and the rest of their stream."""

    def __init__(self, head: bytes, file: IO[bytes]) -> None:
        self._head, self._file = head, file

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer."""
        if self._head:
            data, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        else:
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
