"""The bytes of an archive, unpacked piece by piece, each with the place where it can be found again.

A place is (offset, skip): begin to unpack at this byte of the file and pass over so many bytes of what comes out. Web
archives pack each record as a gzip member of its own, so that a reader can begin at any record; of an archive that is
packed otherwise, only the beginning is such a place.
"""

import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

import fsspec

from gpt2train.errors import UserError
from tasks.inputs import open_input

if TYPE_CHECKING:
    from zlib import _Decompress as _Inflate

BLOCK = 2**16  # bytes read at a time; larger ones are copied once for each of the small members in them
GZIP = b"\x1f\x8b\x08"
RECORD = b"WARC/"  # what a record begins with
BACK = 2**20  # bytes before a fault that are searched for the next member


class Place(NamedTuple):
    """Where something begins: unpack from `offset` on, pass over `skip` bytes."""

    offset: int
    skip: int


class Damage(Exception):
    """The packed bytes are broken; the next call reads on after the damage.

    Attributes:
        offset: where the broken member begins.
        truncated: the file ends too soon.
    """

    def __init__(self, message: str, offset: int, truncated: bool = False) -> None:
        super().__init__(message)
        self.offset, self.truncated = offset, truncated


class ArchiveStream:
    """An archive's bytes. Never holds more than a block of them, and no two members at a time.

    Args:
        file: as it lies there.
        gzipped: each record, or all of them together, is a gzip member.
        seekable: whether `go` can return to a place.
        offset: where to begin.
    """

    def __init__(self, file: IO[bytes], gzipped: bool, seekable: bool = True, offset: int = 0) -> None:
        self._file, self._gzipped, self.seekable = file, gzipped, seekable
        self._held, self._at = b"", 0  # bytes at hand, and how many of them were taken
        self._begin(offset)

    @property
    def place(self) -> Place:
        """Of the next byte; meaningful after `ready` said that there is one."""
        # Without members every byte is a place of its own; a packed stream of another kind has its beginning alone.
        return Place(self._member, self._done) if self._gzipped or not self.seekable else Place(self._done, 0)

    @property
    def at_member(self) -> bool:
        """Whether the next byte is the first of a member, or of the file."""
        return self._done == self._first

    def ready(self) -> bool:
        """Have bytes at hand, of the next member where this one is read; False at the end of the file.

        Raises:
            Damage: the packed bytes are broken.
        """
        while self._at >= len(self._held):
            self._held, self._at = self._more(), 0
            if not self._held and not self._next_member():
                return False
        return True

    def peek(self, count: int) -> bytes:
        """The next bytes of this member, fewer at its end."""
        while len(self._held) - self._at < count and (more := self._more()):
            self._held, self._at = self._held[self._at :] + more, 0
        return self._held[self._at : self._at + count]

    def take(self, limit: int) -> bytes:
        """Some bytes of what is at hand, at most `limit`."""
        data = self._held[self._at : self._at + limit]
        self._at += len(data)
        self._done += len(data)
        return data

    def line(self, limit: int) -> bytes:
        """Up to a line feed, the end of the member, or so many bytes."""
        pieces: list[bytes] = []
        left = limit
        while left > 0 and (self._at < len(self._held) or self.peek(1)):
            end = self._held.find(b"\n", self._at)
            pieces.append(self.take(min(left, end + 1 - self._at if end >= 0 else len(self._held) - self._at)))
            left -= len(pieces[-1])
            if end >= 0 and pieces[-1].endswith(b"\n"):
                break
        return b"".join(pieces)

    def body(self, count: int) -> Iterator[bytes]:
        """Pieces of the next `count` bytes; they end early where the member does."""
        while count > 0 and self.peek(1):
            data = self.take(count)
            count -= len(data)
            yield data

    def blank(self) -> bool:
        """Pass over line ends; whether anything follows."""
        while self.ready():
            if self._held[self._at] not in b"\r\n":
                return True
            self.take(1)
        return False

    def record(self) -> bool:
        """Go on to where a record begins: a member's first byte, or after an empty line. False where there is none."""
        after_blank = False
        while self.ready():
            if (self.at_member or after_blank) and self.peek(len(RECORD)) == RECORD:
                return True
            after_blank = self.line(BLOCK) in (b"\r\n", b"\n")
        return False

    def start(self) -> bytes:
        """The first bytes of what the archive holds, without going on; none where it is empty or broken."""
        try:
            return self.peek(BLOCK)[:100] if self.ready() else b""
        except Damage:
            return b""

    def reach(self, place: Place) -> None:
        """Go to a place; back only where the file is seekable."""
        at = self.place
        if self._gzipped or not self.seekable:
            gap = place.skip - at.skip if place.offset == at.offset else -1
        else:
            gap = place.offset - at.offset
        if gap < 0 or (self.seekable and not self._gzipped and gap > BLOCK):
            self._begin(place.offset)
            gap = place.skip
        while self.ready() and gap > 0:  # ready in any case: bytes are at hand then
            gap -= len(self.take(gap))

    def _begin(self, offset: int) -> None:
        """Read from this byte of the file on."""
        if self.seekable:
            self._file.seek(offset)
        self._read = self._member = offset  # bytes of the file that were read; where this member begins
        self._first = offset if self.seekable and not self._gzipped else 0
        self._done = self._first  # bytes that were taken, of this member; without members, of the file
        self._held, self._at = b"", 0
        self._packed = b""  # bytes of the file that are still to be unpacked
        self._inflate: _Inflate | None = None  # None between members
        self._broken = False

    def _block(self) -> bytes:
        try:
            data = b"" if self._broken else self._file.read(BLOCK)
        except UserError as error:
            if self.seekable:
                raise
            raise self._damage("the packed data are broken or end too soon", truncated=True) from error
        self._read += len(data)
        return data

    def _more(self) -> bytes:
        """Further bytes of this member; none at its end."""
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

    def _damage(self, message: str, truncated: bool = False) -> Damage:
        self._broken, self._inflate = True, None
        self._held, self._at = b"", 0
        return Damage(message, self._member, truncated)

    def _next_member(self) -> bool:
        """Begin the next gzip member; after a fault the next one that holds a record."""
        if not self._gzipped:
            return False
        if self._broken:
            found = find_member(self._file, max(self._member + 1, self._read - BACK))
            if found is None:
                return False  # and nothing more is read
            self._begin(found)
        while not self._packed.strip(b"\0"):  # some writers fill up with zeros
            self._packed = self._block()
            if not self._packed:
                return False
        self._packed = self._packed.lstrip(b"\0")
        self._member, self._done = self._read - len(self._packed), 0
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        return True


def find_member(file: IO[bytes], offset: int) -> int | None:
    """The first byte from `offset` on where a gzip member begins that holds a record; None where there is none."""
    file.seek(offset)
    held, start = b"", offset
    while block := file.read(BLOCK * 16):
        held += block
        at = held.find(GZIP)
        while at >= 0:
            if at + BLOCK > len(held) and (more := file.read(BLOCK)):
                held += more
            if _begins_record(held[at : at + BLOCK]):
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
def open_archive(place: str, offset: int = 0) -> Iterator[ArchiveStream]:
    """Open an archive: plain and gzip by what it begins with, other packing (.zst .xz .bz2) by its ending.

    Raises:
        UserError: it cannot be read.
    """
    with ExitStack() as stack:
        if place.lower().endswith((".zst", ".xz", ".bz2")):
            yield ArchiveStream(stack.enter_context(open_input(place)), gzipped=False, seekable=False)
            return
        file = stack.enter_context(fsspec.open(place, "rb"))
        gzipped = file.read(len(GZIP)) == GZIP
        file.seek(0)
        yield ArchiveStream(file, gzipped=gzipped, offset=offset)
