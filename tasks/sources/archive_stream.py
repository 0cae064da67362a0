"""Incremental decompression of an archive, with positions to which a reader can return.

A position is (offset, skip): start decompression at this byte of the file and skip this many decompressed bytes. Web
archives compress each record as its own gzip member, so that a reader can start at any record; archives with another
compression have only one such start, their beginning. Where members do not begin with records, as bgzip cuts them, a
record goes on in the next member.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

from gpt2train.data.packed_file import PACKED
from gpt2train.errors import DamagedFileError
from tasks.core.input_files import open_input, open_raw, suffix_of

if TYPE_CHECKING:
    from zlib import _Decompress as _Inflate

BLOCK = 2**16  # bytes read at a time; a larger block would be copied once for each small member in it
GZIP = b"\x1f\x8b\x08"
BGZIP = re.compile(GZIP + rb"\x04.{8}BC", re.DOTALL)  # beginning of a member that bgzip has cut
OTHER_PACKINGS = tuple(suffix for suffix in PACKED if suffix not in (".gz", ".gzip"))
RECORD = b"WARC/"  # first bytes of a record
# Limit on bytes that are read again after returning: a constant, and a factor of the bytes read once.
MIN_REREAD, REREAD_FACTOR = 2**26, 8
_RECORD_AFTER_BLANK = re.compile(rb"\n\r?\n" + RECORD)
_BREAKS = re.compile(rb"[\r\n\0]*")  # and zeros, with which some writers pad
MEMBER_HEAD = 2**10  # packed bytes that show if a member begins with a record
BACK = 2**20  # bytes before a fault that are searched for the next member


class StreamPosition(NamedTuple):
    """Position in an archive: decompress from byte `offset` of the file, and skip `skip` decompressed bytes."""

    offset: int
    skip: int


class DamageError(Exception):
    """The compressed data of the member at `offset` are damaged or truncated; the next call continues after it."""

    def __init__(self, message: str, offset: int, truncated: bool = False) -> None:
        super().__init__(message)
        self.offset, self.truncated = offset, truncated


class ArchiveStream:
    """Decompressed bytes of an archive. Holds at most one block in memory, and never bytes of two members.

    `gzipped` means that the file consists of gzip members, `seekable` that `seek` can go back.
    """

    def __init__(self, file: IO[bytes], gzipped: bool, seekable: bool = True) -> None:
        self._file, self._gzipped, self.seekable = file, gzipped, seekable
        # Of `open_input`: `read1` returns the bytes before a fault, `read` loses them.
        self._read_file: Callable[[int], bytes] = file.read if seekable else file.read1  # type: ignore[attr-defined]
        self.packed = gzipped or not seekable  # it may have far more bytes than the file
        self._buffer, self._at = b"", 0  # decompressed bytes, and the number of them that were taken
        self.taken = self.reread = 0  # bytes taken in all, and bytes taken again after returning
        self._begin(0)

    @property
    def position(self) -> StreamPosition:
        """Position of the next byte; valid after `ready` has returned True."""
        # An uncompressed file can be entered at any byte; a compressed one without members only at its beginning.
        return StreamPosition(self._member, self._done) if self.packed else StreamPosition(self._done, 0)

    @property
    def at_member(self) -> bool:
        """True if the next byte is the first of a member or of the file."""
        return self._done == self._first

    def ready(self) -> bool:
        """Fill the buffer, from the next member if the current one has ended; return False at the end of the file.

        Raises:
            DamageError: The compressed data are damaged.
        """
        while self._at >= len(self._buffer):
            self._buffer, self._at = self._more(), 0
            if not self._buffer and not self._next_member():
                return False
        return True

    def peek(self, count: int) -> bytes:
        """Return the next bytes of this member without taking them; fewer at its end."""
        while len(self._buffer) - self._at < count and (more := self._more()):
            self._buffer, self._at = self._buffer[self._at :] + more, 0
        return self._buffer[self._at : self._at + count]

    def take(self, limit: int) -> bytes:
        """Take bytes from the buffer, at most `limit`."""
        data = self._buffer[self._at : self._at + limit]
        self._at += len(data)
        self._done += len(data)
        self.taken += len(data)
        return data

    def line(self, limit: int) -> bytes:
        """Take bytes up to a line feed or the next member with a record, at most `limit`."""
        pieces: list[bytes] = []
        left = limit
        while left > 0 and (self._at < len(self._buffer) or self.peek(1) or self._join_member()):
            end = self._buffer.find(b"\n", self._at)
            pieces.append(self.take(min(left, end + 1 - self._at if end >= 0 else len(self._buffer) - self._at)))
            left -= len(pieces[-1])
            if end >= 0 and pieces[-1].endswith(b"\n"):
                break
        return b"".join(pieces)

    def body(self, count: int) -> Iterator[bytes]:
        """Yield chunks of the next `count` bytes, fewer before the next member with a record."""
        while count > 0 and (self.peek(1) or self._join_member()):
            data = self.take(count)
            count -= len(data)
            yield data

    def skip_blank(self) -> bool:
        """Skip line ends and padding; return True if anything follows."""
        while self.ready():
            self.take(_BREAKS.match(self._buffer, self._at).end() - self._at)  # type: ignore[union-attr]
            if self._at < len(self._buffer):
                return True
        return False

    def next_record(self) -> bool:
        """Skip to the next record, at a member's first byte or after an empty line; return False if there is none."""
        after_blank = False
        while self.ready():
            if (self.at_member or after_blank) and self.peek(len(RECORD)) == RECORD:
                return True
            if not self.peek(len(RECORD) + 2).startswith((b"\n" + RECORD, b"\r\n" + RECORD)):
                self._skip_lines()
            after_blank = self.line(BLOCK) in (b"\r\n", b"\n")
        return False

    def _skip_lines(self) -> None:
        """Skip lines in the buffer: up to the empty line before the next record, or all but the last two."""
        found = _RECORD_AFTER_BLANK.search(self._buffer, self._at)
        if found:
            self.take(found.start() + 1 - self._at)
            return
        last = self._buffer.rfind(b"\n", self._at)
        before = self._buffer.rfind(b"\n", self._at, last) if last > self._at else -1
        self.take(max(0, before + 1 - self._at))

    def skip_member(self) -> None:
        """Skip the rest of this member."""
        while self._at < len(self._buffer) or self.peek(1):
            self.take(BLOCK)

    def may_return(self, position: StreamPosition, count: int) -> bool:
        """Return True if going back by `count` bytes to a position keeps the repeated decompression within its limit.

        The limit is necessary because each record of an archive can claim a length that includes the next records, and
        because going back into the middle of a member means decompressing the member from its beginning.
        """
        cost = count + position.skip
        if not self.seekable or self.reread + cost > MIN_REREAD + REREAD_FACTOR * max(0, self.taken - self.reread):
            return False
        self.reread += cost
        return True

    def start(self) -> bytes:
        """Return the first bytes of the archive without taking them; empty if it is empty or damaged."""
        try:
            return self.peek(BLOCK)[:100] if self.ready() else b""
        except DamageError:
            return b""

    def seek(self, position: StreamPosition) -> None:
        """Go to a position; backwards only if the file is seekable."""
        at = self.position
        if self.packed:
            gap = position.skip - at.skip if position.offset == at.offset else -1
        else:
            gap = position.offset - at.offset
        if gap < 0 or (gap > BLOCK and not self.packed):
            self._begin(position.offset)
            gap = position.skip
        while self.ready() and gap > 0:  # `ready` comes first, so that the buffer is filled in any case
            gap -= len(self.take(gap))

    def _begin(self, offset: int) -> None:
        """Start reading at this byte of the file."""
        if self.seekable:
            self._file.seek(offset)
        self._read = self._member = offset  # read position in the file; offset of the current member
        self._first = 0 if self.packed else offset
        self._done = self._first  # bytes taken from this member; without members, from the file
        self._buffer, self._at = b"", 0
        self._packed = b""  # bytes of the file that are not yet decompressed
        self._inflate: _Inflate | None = None  # None between members
        self._broken = False

    def _block(self) -> bytes:
        try:
            data = b"" if self._broken else self._read_file(BLOCK)
        except DamagedFileError as error:
            raise self._damage(f"the packed data end too soon: {error.fault}", truncated=True) from error
        self._read += len(data)
        return data

    def _more(self) -> bytes:
        """Return further bytes of this member; empty at its end."""
        if not self._gzipped:
            return self._block()
        while self._inflate is not None:
            if self._inflate.eof:
                self._packed, self._inflate = self._inflate.unused_data, None
                break
            packed = self._packed or self._block()
            if not packed:
                raise self._damage("the file ends within a gzip member", truncated=True)
            try:
                data = self._inflate.decompress(packed, BLOCK)
            except zlib.error as error:
                raise self._damage(f"broken gzip data ({error})") from error
            self._packed = self._inflate.unconsumed_tail
            if data:
                return data
        return b""

    def _damage(self, message: str, truncated: bool = False) -> DamageError:
        self._broken, self._inflate = True, None
        self._buffer, self._at = b"", 0
        return DamageError(message, self._member, truncated)

    def _join_member(self) -> bool:
        """Go on in the next gzip member; return False if there is none, or a record begins there."""
        while self._gzipped and not self._broken:
            while len(self._packed) < MEMBER_HEAD and (block := self._block()):
                self._packed += block
            if not self._packed.startswith(GZIP) or _begins_record(self._packed):
                return False
            self._next_member()
            if self.peek(1):
                return True
        return False

    def _next_member(self) -> bool:
        """Start the next gzip member; after damage, the next one that a reader can start at."""
        if not self._gzipped:
            return False
        if self._broken:
            found = find_member(self._file, max(self._member + 1, self._read - BACK))
            if found is None:
                return False  # nothing more is read
            self._begin(found)
        while not self._packed.strip(b"\0"):  # some writers pad with zeros
            self._packed = self._block()
            if not self._packed:
                return False
        self._packed = self._packed.lstrip(b"\0")
        self._member, self._done = self._read - len(self._packed), 0
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        return True


def find_member(file: IO[bytes], offset: int) -> int | None:
    """Return the offset of the first gzip member from `offset` on that begins with a record or is bgzip's, or None."""
    file.seek(offset)
    held, start = b"", offset
    while block := file.read(BLOCK * 16):
        held += block
        at = held.find(GZIP)
        while at >= 0:
            if at + BLOCK > len(held) and (more := file.read(BLOCK)):
                held += more
            if BGZIP.match(held, at) or _begins_record(held[at : at + BLOCK]):
                return start + at
            at = held.find(GZIP, at + 1)
        start += len(held) - len(GZIP)
        held = held[-len(GZIP) :]
    return None


def _begins_record(packed: bytes) -> bool:
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(packed, len(RECORD)) == RECORD
    except zlib.error:
        return False


@contextmanager
def open_archive(location: str) -> Iterator[ArchiveStream]:
    """Open an archive: plain or gzip by its first bytes, other compression by its suffix.

    Raises:
        UserError: The file cannot be read.
    """
    if suffix_of(location) in OTHER_PACKINGS:
        with open_input(location) as stream:
            yield ArchiveStream(stream, gzipped=False, seekable=False)
        return
    with open_raw(location) as file:
        yield ArchiveStream(file, gzipped=file.read(len(GZIP)) == GZIP)
