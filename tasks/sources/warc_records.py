"""Reader of a web archive's records (WARC 1.0 and 1.1) that skips damage and holds one record in memory.

warcio stops at the first broken record and reads header lines of any length into memory. Here a broken record is
returned as such, with its position, and reading continues at the next one. warcio's parser parses the headers.
"""

import functools
import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from warcio.statusandheaders import StatusAndHeaders, StatusAndHeadersParser

from tasks.sources.archive_stream import RECORD, ArchiveStream, DamageError, StreamPosition

MAX_HEAD = 2**16  # bytes of a record's header, and of the HTTP header in it
# Limit on broken records in a compressed archive: a constant, and one per this many bytes. 2 kB compressed can hold
# 58,000 of them.
MIN_BROKEN, BROKEN_BYTES = 1000, 2**14
GIVEN_UP = "there are too many broken records, and the rest of this gzip member is passed over"
UNREAD = {"": "it has no WARC-Type", "continuation": "the rest of a record in segments, which is not joined to it"}
_WARC = StatusAndHeadersParser([], verify=False)


@dataclass(frozen=True)
class Record:
    """One record."""

    position: StreamPosition  # position of its first byte
    kind: str  # `response`, `conversion`, …; lower case
    url: str  # target URI; empty if it has none
    date: str  # date of its header
    head: StatusAndHeaders  # all header fields
    block: bytes | None  # content; None if it is longer than the limit


class BrokenRecord(NamedTuple):
    """A record that cannot be read: its position, a reason code, a detail, and its target URI if known."""

    position: StreamPosition
    reason: str
    detail: str
    url: str = ""


def read_records(stream: ArchiveStream, wanted: Collection[str], max_block: int) -> Iterator[Record | BrokenRecord]:
    """Yield the records of the wanted kinds and every broken one, in order; others are skipped.

    The stream is at the beginning of a record. Blocks of more than `max_block` bytes are not read into memory.

    Reasons: `broken_record` (no header, a wrong length, damaged compression), `truncated_record` (the file ends within
    the record). In a compressed archive with too many broken records, the rest of each member after a further broken
    record is skipped.
    """
    broken = 0

    def broken_at(position: StreamPosition, reason: str, detail: str, url: str = "") -> BrokenRecord:
        nonlocal broken
        broken += 1
        return BrokenRecord(position, reason, f"{detail}; {GIVEN_UP}" if too_many() else detail, url)

    def too_many() -> bool:
        return stream.packed and broken > MIN_BROKEN + stream.taken // BROKEN_BYTES

    def go_on(resume: Callable[[], object]) -> None:
        stream.skip_member() if too_many() else resume()

    while True:
        position: StreamPosition | None = None
        record: Record | None = None  # if all of it was read
        url = ""
        try:
            if not stream.skip_blank():
                return
            position = stream.position
            lines = _head(stream)
            if isinstance(lines, str):
                yield broken_at(position, "broken_record", lines)
                go_on(stream.next_record)
                continue
            head = _WARC.parse(io.BytesIO(lines))
            url = (head.get_header("WARC-Target-URI") or "").strip("<> ")  # wget 1.19 writes them in brackets
            kind = (head.get_header("WARC-Type") or "").lower()
            length = head.get_header("Content-Length") or ""
            if not (length.isascii() and length.isdecimal() and len(length) < 19):
                yield broken_at(position, "broken_record", f"Content-Length {length[:30]!r}, a number expected", url)
                go_on(stream.next_record)
                continue
            block, count = _block(stream, int(length), max_block if kind in wanted else 0)
            found = Record(position, kind, url, head.get_header("WARC-Date") or "", head, block)
            record = found if count == int(length) else None
            if fault := _fault(stream, int(length), count):
                yield broken_at(position, *fault, url)
                resume = functools.partial(_resume, stream, position, count, max_block)
                position, record, url = None, None, ""  # damage on the way is that of what follows
                go_on(resume)
            elif kind in wanted or kind in UNREAD:
                yield found if kind in wanted else broken_at(position, "broken_record", UNREAD[kind], url)
        except DamageError as damage:
            if record is not None and position is not None and damage.offset > position.offset:
                if record.kind in wanted:  # the damage is in the next record
                    yield record
                position, url = None, ""
            reason = "truncated_record" if damage.truncated else "broken_record"
            yield BrokenRecord(position or StreamPosition(damage.offset, 0), reason, str(damage), url)


def _head(stream: ArchiveStream) -> bytes | str:
    """Read the header lines of a record with the empty line at their end; a string describes a fault."""
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
    """Read a block; return its bytes (None if there are more than the limit) and their number."""
    held = bytearray()
    count = 0
    for piece in stream.body(length):
        count += len(piece)
        if count <= max_block:
            held += piece
    return bytes(held) if count <= max_block else None, count


def _fault(stream: ArchiveStream, length: int, count: int) -> tuple[str, str] | None:
    """Check the block that was read; return the reason and detail of a fault, or None."""
    if count < length:
        at_end = not stream.ready()
        return (
            "truncated_record" if at_end else "broken_record",
            f"Content-Length {length:,}, but {'the file' if at_end else 'the record'} ends after {count:,} bytes",
        )
    # Some writers put no empty lines between records.
    if stream.peek(1) not in (b"", b"\r", b"\n") and stream.peek(len(RECORD)) != RECORD:
        return "broken_record", f"the record goes on after its Content-Length of {length:,} bytes"
    stream.skip_blank()  # up to the end of the member, where zlib verifies its checksum
    return None


def _resume(stream: ArchiveStream, position: StreamPosition, count: int, max_block: int) -> None:
    """Find the next record after one with a wrong length; search also its block if that is not too long."""
    if count <= max_block and stream.may_return(position, count):
        stream.seek(position)
        stream.line(MAX_HEAD)
    stream.next_record()
