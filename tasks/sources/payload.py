"""From the block of a response record to a page: HTTP head, transfer and content encoding, all within bounds."""

import contextlib
import hashlib
import io

import brotli
from warcio.statusandheaders import StatusAndHeaders, StatusAndHeadersParser

from tasks.download.body import RATIO_FLOOR, Decoder, Refused
from tasks.download.warc import HTML_TYPES, Page, parse_content_type
from tasks.sources.records import MAX_HEAD, Record

_HTTP = StatusAndHeadersParser([], verify=False)


def page_of(record: Record, source: str, max_bytes: int, max_ratio: float) -> Page:
    """The HTML page of a response record.

    Args:
        record: of kind `response`.
        source: name of the archive.
        max_bytes: of the page when decoded.
        max_ratio: decoded bytes for each byte in the archive, above 1 MiB.

    Raises:
        Refused: it holds none; `http_status`, `content_type`, `too_large`, `compression_ratio`, `content_encoding`,
            `transfer_encoding`, `broken_record`, `empty`.
    """
    if record.block is None:
        raise Refused("too_large", "the record is longer than the bound")
    head, body = _split(record.block)
    status = (head.get_statuscode() or "")[:20]
    if status != "200":
        raise Refused("http_status", f"{status or 'none'}, 200 expected")
    content_type, charset = parse_content_type(head.get_header("Content-Type"))
    if content_type not in HTML_TYPES:
        raise Refused("content_type", f"{content_type[:60] or 'none'}, {' or '.join(HTML_TYPES)} expected")
    if "chunked" in (head.get_header("Transfer-Encoding") or "").lower():
        body = unchunk(body)
    body = unpack(body, head.get_header("Content-Encoding") or "", max_bytes, max_ratio)
    if not body:
        raise Refused("empty", "a page of no bytes")
    return Page(
        url=record.head.get_header("X-List-URL") or record.url,
        final_url=record.url,
        content_type=content_type,
        charset=charset,
        body=body,
        fetched_at=record.date,
        sha256=hashlib.sha256(body).hexdigest(),
        source=record.head.get_header("X-List-Source") or source,
        truncated=bool(record.head.get_header("WARC-Truncated")),
    )


def unchunk(body: bytes) -> bytes:
    """Undo `Transfer-Encoding: chunked`; what does not begin with a chunk was undone by the crawler already.

    Raises:
        Refused: `transfer_encoding`, the chunks break off or do not fit.
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
            raise Refused("transfer_encoding", f"no chunk begins at byte {at:,} of the body")
        if length == 0:
            return b"".join(pieces)
        if end + 1 + length > len(body):
            raise Refused("transfer_encoding", f"the chunk at byte {at:,} is longer than the body")
        pieces.append(body[end + 1 : end + 1 + length])
        at = end + 1 + length
        at += 2 if body[at : at + 2] == b"\r\n" else body[at : at + 1] == b"\n"


def unpack(body: bytes, encoding: str, max_bytes: int, max_ratio: float) -> bytes:
    """Undo a Content-Encoding within bounds; archives often keep the header of a body that the crawler has decoded.

    Raises:
        Refused: `too_large`, `compression_ratio`, `content_encoding`.
    """
    encoding = encoding.strip().lower()
    limit = int(min(max_bytes, max(len(body) * max_ratio, RATIO_FLOOR)))
    if encoding in ("gzip", "x-gzip") and not body.startswith(b"\x1f\x8b"):
        encoding = ""
    if encoding == "br":
        found = _unbrotli(body, limit)
    else:
        found = _inflate(body, encoding, limit)
    if len(found) > max_bytes:
        raise Refused("too_large", f"more than {max_bytes:,} bytes when decoded")
    if len(found) > limit:
        raise Refused("compression_ratio", f"more than {max_ratio:g} times the bytes in the archive")
    return found


def _inflate(body: bytes, encoding: str, limit: int) -> bytes:
    decoder = Decoder(encoding)
    try:
        found = decoder.feed(body, limit)
    except Refused:
        if encoding == "deflate" and looks_decoded(body):
            return body[: limit + 1]
        raise
    if not decoder.whole and len(found) <= limit:
        raise Refused("content_encoding", f"the {encoding} data end too soon")
    return found


def _unbrotli(body: bytes, limit: int) -> bytes:
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
        if looks_decoded(body):
            return body[: limit + 1]
        raise Refused("content_encoding", "not the brotli data it is said to be") from error
    if not decoder.is_finished() and len(found) <= limit:
        if looks_decoded(body):
            return body[: limit + 1]
        raise Refused("content_encoding", "the brotli data end too soon")
    return bytes(found[: limit + 1])


def looks_decoded(body: bytes) -> bool:
    """Whether a body is a page as it stands: `<` begins it, maybe after a byte order mark and spaces."""
    return body[:200].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def _split(block: bytes) -> tuple[StatusAndHeaders, bytes]:
    """HTTP head and body of a response.

    Raises:
        Refused: `broken_record`.
    """
    ends = [(at, len(mark)) for mark in (b"\r\n\r\n", b"\n\n") if (at := block.find(mark, 0, MAX_HEAD)) >= 0]
    if not ends or not block.startswith(b"HTTP/"):
        raise Refused("broken_record", "the response has no HTTP head")
    at, size = min(ends)
    with contextlib.suppress(EOFError):
        return _HTTP.parse(io.BytesIO(block[: at + size])), block[at + size :]
    raise Refused("broken_record", "the response has no HTTP head")
