"""Decoding of a response record's block into a page: HTTP head, transfer and content encoding, with bounded sizes."""

import contextlib
import hashlib
import io
import re

import brotli
import pyarrow as pa
from warcio.statusandheaders import StatusAndHeaders, StatusAndHeadersParser

from tasks.download.mime import HTML_TYPES, UNKNOWN_TYPES, checked_language, parse_content_type, type_of, wrong_type
from tasks.download.response_body import RATIO_FLOOR, Decoder, FetchRejectedError, codings_of
from tasks.download.warc import Page
from tasks.sources.warc_records import MAX_HEAD, Record

MAX_INTERIM = 8  # heads of one response
MAX_CHUNKS = 2**16  # of one body; servers that flush at each line send some thousands
_HEAD_END = re.compile(rb"\n\r?\n")  # servers mix both line ends
_HTTP = StatusAndHeadersParser([], verify=False)


def is_page(record: Record) -> bool:
    """Return False for a resource that is no page, as screenshots and logs of crawlers."""
    return record.kind != "resource" or parse_content_type(_type_of_block(record))[0] in HTML_TYPES


def _type_of_block(record: Record) -> str:
    return record.head.get_header("Content-Type") or "application/http"


def page_of(record: Record, source: str, max_bytes: int, max_ratio: float, *, own: bool = False) -> Page:
    """Return the HTML page of a response or resource record of the archive `source`, with the limits of `unpack`.

    A record of this project's `own` download may be empty, and its type is the one that the download found.

    Raises:
        FetchRejectedError: The record holds no page: `http_status`, `content_type`, `too_large`, `compression_ratio`,
            `content_encoding`, `transfer_encoding`, `broken_record`, `empty`.
    """
    if record.block is None:
        raise FetchRejectedError("too_large", "the record is longer than the bound")
    kind = _type_of_block(record)
    if (
        record.kind != "resource"
        and not record.block.startswith(b"HTTP/")
        and not kind.lower().startswith("application/http")
    ):
        raise FetchRejectedError("content_type", f"{kind[:60]}, application/http expected")  # as Heritrix writes dns:
    head, body = split_record(record)
    status = (head.get_statuscode() or "")[:20]
    if status != "200":
        raise FetchRejectedError("http_status", f"{status or 'none'}, 200 expected")
    declared, charset = parse_content_type(*_fields(head, "content-type"))
    if declared not in UNKNOWN_TYPES and declared not in HTML_TYPES:
        raise FetchRejectedError("content_type", f"{declared[:60]}, {' or '.join(HTML_TYPES)} expected")
    content, transfer = (head.get_header(f"{kind}-Encoding") or "" for kind in ("Content", "Transfer"))
    if "chunked" in transfer.lower():
        body = unchunk(body)
    body = unpack(body, f"{content},{transfer}", max_bytes, max_ratio)
    if not (body or own):
        raise FetchRejectedError("empty", "a page of no bytes")
    if (content_type := declared if own and declared else type_of(declared, body)) not in HTML_TYPES:
        raise FetchRejectedError("content_type", wrong_type(declared, content_type))
    return Page(
        url=record.head.get_header("X-List-URL") or record.url,
        final_url=record.url,
        content_type=content_type,
        charset=charset,
        body=body,
        fetched_at=record.date,
        sha256=hashlib.sha256(body).hexdigest(),
        source=record.head.get_header("X-List-Source") or source,
        ip=record.head.get_header("WARC-IP-Address") or "",
        content_language=checked_language(head.get_header("Content-Language")),
    )


def _fields(head: StatusAndHeaders, name: str) -> list[str]:
    """Values of all fields of a name, in their order."""
    return [value for field, value in head.headers if field.lower() == name]


def unchunk(body: bytes) -> bytes:
    """Undo `Transfer-Encoding: chunked`; a body that does not begin with a chunk was decoded by the crawler already.

    Raises:
        FetchRejectedError: `transfer_encoding`, a chunk is missing or malformed.
    """
    pieces: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\n", at, at + 1024)
        size = body[at:end].partition(b";")[0].strip() if end >= 0 else b""
        try:
            length = int(size, 16) if size.isalnum() and len(size) < 17 else -1
        except ValueError:
            length = -1
        if length < 0:
            if not pieces:
                return body
            raise FetchRejectedError("transfer_encoding", f"no chunk begins at byte {at:,} of the body")
        if length == 0:
            return b"".join(pieces)
        if len(pieces) >= MAX_CHUNKS:
            raise FetchRejectedError("transfer_encoding", f"more than {MAX_CHUNKS:,} chunks")
        if end + 1 + length > len(body):
            raise FetchRejectedError("transfer_encoding", f"the chunk at byte {at:,} is longer than the body")
        pieces.append(body[end + 1 : end + 1 + length])
        at = end + 1 + length
        at += 2 if body[at : at + 2] == b"\r\n" else body[at : at + 1] == b"\n"


def unpack(body: bytes, encoding: str, max_bytes: int, max_ratio: float) -> bytes:
    """Undo a Content-Encoding with bounded output; the body may be decoded already despite the header.

    `max_ratio` of the decoded bytes to those in the archive applies above 1 MiB.

    Raises:
        FetchRejectedError: `too_large`, `compression_ratio`, `content_encoding`.
    """
    limit = int(min(max_bytes, max(len(body) * max_ratio, RATIO_FLOOR)))
    for coding in codings_of(encoding):
        if len(body := _undo(body, coding, limit)) > limit:
            break
    found = body[: limit + 1]
    if len(found) > max_bytes:
        raise FetchRejectedError("too_large", f"more than {max_bytes:,} bytes when decoded")
    if len(found) > limit:
        raise FetchRejectedError("compression_ratio", f"more than {max_ratio:g} times the bytes in the archive")
    return found


def _undo(body: bytes, coding: str, limit: int) -> bytes:
    """Undo one coding; at most `limit` + 1 bytes are decoded."""
    if coding in ("gzip", "x-gzip") and not body.startswith(b"\x1f\x8b"):
        return body
    try:
        found, whole = _decode(body, coding, limit)
    except FetchRejectedError:
        if not looks_decoded(body):
            raise
        return body
    if whole or len(found) > limit:
        return found
    if coding == "br" and looks_decoded(body):
        return body
    name = "brotli" if coding == "br" else coding
    raise FetchRejectedError("content_encoding", f"the {name} data end too soon")


def _decode(body: bytes, encoding: str, limit: int) -> tuple[bytes, bool]:
    """Return up to `limit` + 1 decoded bytes, and True if the end of the compressed data was reached."""
    if encoding == "br":
        return _unbrotli(body, limit)
    if encoding == "zstd":
        return _unzstd(body, limit), True
    decoder = Decoder(encoding)
    return decoder.feed(body, limit), not decoder.unfinished


def _unzstd(body: bytes, limit: int) -> bytes:
    try:
        return pa.input_stream(pa.BufferReader(body), compression="zstd").read(limit + 1)
    except OSError as error:
        raise FetchRejectedError("content_encoding", "not the zstd data it is said to be, or cut") from error


def _unbrotli(body: bytes, limit: int) -> tuple[bytes, bool]:
    decoder = brotli.Decompressor()
    found = bytearray()
    try:
        data = body
        while not decoder.is_finished() and len(found) <= limit:
            piece = decoder.process(data, output_buffer_limit=min(limit + 1 - len(found), 2**16))
            if not piece and decoder.can_accept_more_data():
                break
            found += piece
            data = b""
    except brotli.error as error:
        raise FetchRejectedError("content_encoding", "not the brotli data it is said to be") from error
    return bytes(found[: limit + 1]), decoder.is_finished()


def looks_decoded(body: bytes) -> bool:
    """Return True if a body is an uncompressed page: `<` after an optional byte order mark and white space."""
    return body[:200].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def split_record(record: Record) -> tuple[StatusAndHeaders, bytes]:
    """Split a record's block into the head of the response and its body; a resource is a body with a type."""
    if record.kind == "resource":
        fields = [("Content-Type", _type_of_block(record))]
        return StatusAndHeaders("200 OK", fields, "HTTP/1.1"), record.block or b""
    return split_response(record.block or b"")


def split_response(block: bytes) -> tuple[StatusAndHeaders, bytes]:
    """Split a response into HTTP head and body; reject a `broken_record`.

    The heads of interim responses before it (100 Continue, 103 Early Hints), which some crawlers record, are left out.
    """
    start = 0
    for _ in range(MAX_INTERIM):
        end = _HEAD_END.search(block, start, start + MAX_HEAD)
        if end is None or not block.startswith(b"HTTP/", start):
            break
        with contextlib.suppress(EOFError):
            head = _HTTP.parse(io.BytesIO(block[start : end.end()]))
            if not (head.get_statuscode() or "").startswith("1") or not block.startswith(b"HTTP/", end.end()):
                return head, block[end.end() :]
        start = end.end()
    raise FetchRejectedError("broken_record", "the response has no HTTP head")
