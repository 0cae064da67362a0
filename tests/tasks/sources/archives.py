"""Web archives for the tests, written byte by byte, so that any part can be malformed."""

import gzip
import zlib
from collections.abc import Iterable

HTML = "text/html; charset=utf-8"


def response(
    number: int,
    body: bytes,
    *headers: str,
    status: str = "200 OK",
    content_type: str = HTML,
    length: int | None = None,
) -> bytes:
    """A response record, `length` being the Content-Length that it claims."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *headers])
    return record("response", number, head.encode() + b"\r\n\r\n" + body, length=length)


def record(kind: str, number: int, block: bytes, length: int | None = None) -> bytes:
    """A record of any kind."""
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url(number)}\r\nWARC-Date: 2026-01-02T03:04:05Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\nContent-Type: application/http\r\n"
        f"Content-Length: {len(block) if length is None else length}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def url(number: int) -> str:
    return f"http://a.example/{number}"


def members(records: Iterable[bytes]) -> bytes:
    """Records as gzip members, as in Common Crawl."""
    return b"".join(gzip.compress(one, mtime=0) for one in records)


def chunked(body: bytes, size: int = 1000) -> bytes:
    """A body as HTTP sends it in chunks."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(f"{len(piece):x};x=y\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


def zeros(count: int, wrapper: int = 16 + zlib.MAX_WBITS, before: bytes = b"") -> bytes:
    """Compressed zeros of this length, made in little memory."""
    packer = zlib.compressobj(1, zlib.DEFLATED, wrapper)
    block = bytes(2**20)
    pieces = [packer.compress(before)] + [packer.compress(block) for _ in range(count // len(block))]
    return b"".join(pieces) + packer.compress(bytes(count % len(block))) + packer.flush()
