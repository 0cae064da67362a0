"""Records of a web archive (WARC 1.0 and 1.1), one in memory at a time, past every damage.

warcio stops at the first broken record, and holds a header line whatever its length; here a broken record is given back
as such, with its place, and reading goes on at the next one. warcio's parser reads the heads.
"""

import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from warcio.statusandheaders import StatusAndHeaders, StatusAndHeadersParser

from tasks.sources.stream import RECORD, ArchiveStream, Damage, Place

MAX_HEAD = 2**16  # bytes of a record's own head, and of the HTTP head in it
_WARC = StatusAndHeadersParser([], verify=False)


@dataclass(frozen=True)
class Record:
    """One record.

    Attributes:
        place: where it begins.
        kind: `response`, `conversion`, …; lower case.
        url: its target, empty where it has none.
        date: as the head says.
        head: all its fields.
        block: what it holds; None where it is longer than the bound.
    """

    place: Place
    kind: str
    url: str
    date: str
    head: StatusAndHeaders
    block: bytes | None


class Broken(NamedTuple):
    """A record that cannot be read: where it begins, a reason code, what was found, its target where that is known."""

    place: Place
    reason: str
    detail: str
    url: str = ""


def read_records(stream: ArchiveStream, wanted: Collection[str], max_block: int) -> Iterator[Record | Broken]:
    """Records of the wanted kinds, and every broken one, in order; the others are passed over.

    Reasons: `broken_record` (no head, a wrong length, broken packing), `truncated_record` (the file ends within it).

    Args:
        stream: an archive, at the beginning of a record.
        wanted: kinds of records.
        max_block: of a block that is held.
    """
    while True:
        place: Place | None = None
        whole: Record | None = None
        url = ""
        try:
            if not stream.blank():
                return
            place = stream.place
            lines = _head(stream)
            if isinstance(lines, str):
                yield Broken(place, "broken_record", lines)
                stream.record()
                continue
            head = _WARC.parse(io.BytesIO(lines))
            url = (head.get_header("WARC-Target-URI") or "").strip("<> ")  # wget 1.19 writes them in brackets
            kind = (head.get_header("WARC-Type") or "").lower()
            length = head.get_header("Content-Length") or ""
            if not (length.isascii() and length.isdecimal() and len(length) < 19):
                yield Broken(place, "broken_record", f"Content-Length {length[:30]!r}, a number expected", url)
                stream.record()
                continue
            held, count = _block(stream, int(length), max_block if kind in wanted else 0)
            whole = Record(place, kind, url, head.get_header("WARC-Date") or "", head, held)
            if fault := _fault(stream, int(length), count):
                yield Broken(place, *fault, url)
                _resume(stream, place, count, max_block)
            elif kind in wanted:
                yield whole
        except Damage as damage:
            if whole is not None and place is not None and damage.offset > place.offset:
                if whole.kind in wanted:  # the damage is of what follows
                    yield whole
                place, url = None, ""
            reason = "truncated_record" if damage.truncated else "broken_record"
            yield Broken(place or Place(damage.offset, 0), reason, str(damage), url)


def _head(stream: ArchiveStream) -> bytes | str:
    """The lines of a record's head, the empty one included; or what is wrong with them."""
    if stream.peek(len(RECORD)) != RECORD:
        return "no record begins here"
    lines, size = [], 0
    while size < MAX_HEAD and (line := stream.line(MAX_HEAD - size)):
        lines.append(line)
        size += len(line)
        if line in (b"\r\n", b"\n"):
            return b"".join(lines)
    return f"the head is longer than {MAX_HEAD:,} bytes" if size >= MAX_HEAD else "the head has no end"


def _block(stream: ArchiveStream, length: int, max_block: int) -> tuple[bytes | None, int]:
    """Read a block: its bytes where they are within the bound, and how many there were."""
    held = bytearray()
    count = 0
    for piece in stream.body(length):
        count += len(piece)
        if count <= max_block:
            held += piece
    return bytes(held) if count <= max_block else None, count


def _fault(stream: ArchiveStream, length: int, count: int) -> tuple[str, str] | None:
    """What is wrong with the block that was read."""
    if count < length:
        at_end = not stream.ready()
        return (
            "truncated_record" if at_end else "broken_record",
            f"Content-Length {length:,}, but {'the file' if at_end else 'the record'} ends after {count:,} bytes",
        )
    if stream.peek(1) not in (b"", b"\r", b"\n"):
        return "broken_record", f"the record goes on after its Content-Length of {length:,} bytes"
    stream.blank()  # to the end of the member: its checksum stands there
    return None


def _resume(stream: ArchiveStream, place: Place, count: int, max_block: int) -> None:
    """After a wrong length: look for the next record, in what was taken for the block too where it is not too long."""
    if stream.seekable and count <= max_block:
        stream.reach(place)
        stream.line(MAX_HEAD)
    stream.record()
