"""Decompressed bytes of packed files, all of them up to the byte at which a stream is damaged or truncated.

pyarrow fails at such a stream of zstd too, but a read that fails returns nothing, not even the bytes before the fault.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import re
from collections.abc import Callable
from typing import IO, Any

from gpt2train.errors import is_io_failure

# First bytes by suffix. Those of bz2 are longer than its magic, with which a text can begin; of zstd, a frame that is
# skipped may come first, as pzstd writes it.
PACKINGS = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\x00"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
PACKED = (*PACKINGS, ".gzip", ".zstd")  # endings of packed files
NEEDS = {  # by parts of pyarrow's errors; the first is that of a window beyond zstd's own limit, 2^27 bytes
    "too much memory": "needs a window of more than 128 MiB; unpack it with zstd -d --long=31",
    "Dictionary": "needs a dictionary; unpack it with zstd -d -D DICTIONARY",
}
SKIP = 1 << 20  # bytes per read on the way back to the position


def compression(head: bytes) -> str:
    """Return the suffix of the compression that a stream begins with; empty if it is none that is read."""
    return next((suffix for suffix, first in PACKINGS.items() if first.match(head)), "")


def unpack(stream: IO[bytes], suffix: str) -> Any:
    """Decompress a stream as a suffix says, one of `PACKED`; with another, return it as it is."""
    match suffix:
        case ".gz" | ".gzip":
            return gzip.GzipFile(fileobj=stream)
        case ".bz2":
            return io.BufferedReader(StreamsFile(stream, bz2.BZ2Decompressor))
        case ".xz":
            return io.BufferedReader(StreamsFile(stream, lzma.LZMADecompressor))
        case ".zst" | ".zstd":
            return ZstdFile(stream)
    return stream


class FaultLast(io.RawIOBase):
    """Stream whose bytes before a fault are all read before its error is raised.

    A buffered stream loses the bytes that a failing read had already.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        # `read1` stops before a fault, `read` loses the bytes before it.
        self._read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        self._fault: Exception | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; before a fault and at the end, a part of it."""
        count = 0
        while count < len(buffer) and self._fault is None:
            try:
                data = self._read(len(buffer) - count)
            except Exception as error:  # noqa: BLE001 (it is raised below)
                self._fault = error
                break
            if not data:
                break
            buffer[count : count + len(data)] = data
            count += len(data)
        if self._fault and not count:
            raise self._fault
        return count


class StreamsFile(io.RawIOBase):
    """Decompressed bytes of the streams of bz2 or xz in a file, with padding of NULs between and after them.

    The standard library's files end without a word at padding (python/cpython#88300) and at a damaged later stream.

    Args:
        file: compressed bytes.
        decompressor: class of a stream's decompressor.

    Raises:
        EOFError, OSError, lzma.LZMAError: on reading: a stream is truncated or damaged, or what follows one is none.
    """

    def __init__(self, file: IO[bytes], decompressor: Callable[[], Any]) -> None:
        self._file, self._decompressor = file, decompressor
        self._stream, self._rest = decompressor(), b""  # the current stream, and bytes that were read after it

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; what one decompression gives."""
        data = b""
        while not data:
            if self._stream.eof:
                self._rest = self._stream.unused_data.lstrip(b"\0")
                while not self._rest:
                    if not (block := self._file.read(io.DEFAULT_BUFFER_SIZE)):
                        return 0
                    self._rest = block.lstrip(b"\0")
                self._stream = self._decompressor()
            packed, self._rest = self._rest, b""
            if self._stream.needs_input and not packed and not (packed := self._file.read(io.DEFAULT_BUFFER_SIZE)):
                raise EOFError("it ends within a stream")
            data = self._stream.decompress(packed, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class FrameError(OSError):
    """A stream that is not read, with one of `NEEDS`; the rest of it may be whole."""


class ZstdFile(io.RawIOBase):
    """Decompressed bytes of a stream of zstd frames.

    Args:
        file: compressed bytes, at the first one. If it is not seekable, a fault costs the whole read that meets it.

    Raises:
        OSError: on reading: the stream is damaged, or ends within a frame. All bytes before the fault come first.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._position = file, 0
        self._stream = _open(file)
        self._fault: OSError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; before a fault, fewer bytes than it holds."""
        if self._fault:  # pyarrow's stream is not asked again: after some faults it would never return
            raise self._fault
        try:
            data = bytes(self._stream.read(len(buffer)))
        except (OSError, ValueError) as error:
            need = next((need for part, need in NEEDS.items() if part in str(error)), None)
            self._fault = FrameError(need) if need else OSError(str(error))
            if isinstance(error, OSError) and is_io_failure(error):
                self._fault = error
            data = self._bytes_before_fault(len(buffer))
            if not data:
                raise self._fault from error
        self._position += len(data)
        buffer[: len(data)] = data
        return len(data)

    def _bytes_before_fault(self, size: int) -> bytes:
        """Read again what the failed read has lost: from the beginning, and byte by byte to the fault."""
        try:
            self._file.seek(0)
        except (OSError, ValueError):  # not seekable
            return b""
        stream, left, data = _open(self._file), self._position, bytearray()
        with contextlib.suppress(OSError, ValueError):
            while left and (skipped := stream.read(min(left, SKIP))):
                left -= len(skipped)
            while len(data) < size and (byte := stream.read(1)):
                data += byte
        return bytes(data)


def _open(file: IO[bytes]) -> Any:
    import pyarrow  # 0.1 s, for zstd alone

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
