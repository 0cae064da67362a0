"""Compressed bytes of zstd, checked to end with a frame: pyarrow ends a truncated stream without an error.

The frame format is that of RFC 8878, section 3.1.
"""

import io
from collections.abc import Generator
from typing import IO

MAGIC = 0xFD2FB528
SKIPPABLE = 0x184D2A50  # the last four bits are free
MAGIC_BYTES = 4
RLE = 1  # kind of a block that stores one byte, however long it is


class ZstdFrames(io.RawIOBase):
    """Bytes of a compressed stream, as they are.

    Raises:
        EOFError: the stream ends within a frame.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._parser = _parse()
        self._wanted = next(self._parser)
        self._buffer = b""
        self._between = True

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read bytes, and follow the frames in them."""
        data = self._file.read(size)
        if not data and size and not (self._between and not self._buffer):
            raise EOFError("the zstd stream ends early")
        position = 0
        while position < len(data):
            if self._wanted < 0:  # content of a block: skipped
                step = min(-self._wanted, len(data) - position)
                self._wanted += step
                position += step
            else:
                step = min(self._wanted - len(self._buffer), len(data) - position)
                self._buffer += data[position : position + step]
                position += step
            if self._wanted == 0 or len(self._buffer) == self._wanted:
                given, self._buffer = self._buffer, b""
                self._next(given)
        return data

    def _next(self, given: bytes) -> None:
        self._wanted = self._parser.send(given)
        self._between = self._wanted == MAGIC_BYTES  # the parser asks for so many between frames alone
        while self._wanted == 0:
            self._next(b"")


def _parse() -> Generator[int, bytes, None]:
    """Yield the number of bytes that are needed next; a negative number of bytes is to be skipped."""
    while True:
        magic = int.from_bytes((yield MAGIC_BYTES), "little")
        if magic & ~0xF == SKIPPABLE:
            yield -int.from_bytes(((yield 2) + (yield 2)), "little")
            continue
        if magic != MAGIC:
            raise ValueError("not a zstd stream")
        [flags] = yield 1
        single = flags >> 5 & 1
        sizes = (single, 2, 4, 8)[flags >> 6]
        yield -((not single) + (0, 1, 2, 4)[flags & 3] + sizes)
        last = False
        while not last:
            block = int.from_bytes((yield 3), "little")
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            yield -(1 if kind == RLE else size)
        if flags >> 2 & 1:
            yield -4
