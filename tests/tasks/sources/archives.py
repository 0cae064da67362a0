"""Web archives for the tests, written byte by byte, so that any part can be malformed; and their index."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from gpt2train.store.manifest import Folder, Manifest
from tasks.core.runner import Runner
from tasks.download.warc import Page
from tasks.sources.index import read_pages
from tasks.sources.warcs import ArchiveConsent, WarcSettings, find_warcs, warcs
from tests.tasks.corpus import Inline, rejected_of

HTML = "text/html; charset=utf-8"

BODY = b"<html><body>" + b"<p>a paragraph of some words</p>" * 40


def response(
    number: int, body: bytes, *headers: str, status: str = "200 OK", content_type: str = HTML, length: int | None = None
) -> bytes:
    """A response record, `length` being the Content-Length that it claims."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *headers])
    return record("response", number, head.encode() + b"\r\n\r\n" + body, length=length)


def record(kind: str, number: int, block: bytes, length: int | None = None) -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url(number)}\r\nWARC-Date: 2026-01-02T03:04:05Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\nContent-Type: application/http\r\n"
        f"Content-Length: {len(block) if length is None else length}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def url(number: int) -> str:
    return f"http://a.example/{number}"


def members(records: Iterable[bytes]) -> bytes:
    return b"".join(gzip.compress(one, mtime=0) for one in records)


def chunked(body: bytes, size: int = 1000) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(f"{len(piece):x};x=y\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


def zeros(count: int, wrapper: int = 16 + zlib.MAX_WBITS, before: bytes = b"") -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, wrapper)
    block = bytes(2**20)
    pieces = [packer.compress(before)] + [packer.compress(block) for _ in range(count // len(block))]
    return b"".join(pieces) + packer.compress(bytes(count % len(block))) + packer.flush()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def cut_members(records: Iterable[bytes], size: int = 1000) -> bytes:
    """As bgzip packs, without regard to records."""
    data = b"".join(records)
    packed = [gzip.compress(data[at : at + size], mtime=0) for at in range(0, len(data) + size, size)]
    return b"".join(one[:3] + b"\4" + one[4:10] + b"\6\0BC\2\0\0\0" + one[10:] for one in packed)


INFO = record("warcinfo", 0, b"software: none\r\n")

COMPRESSORS = {
    "members.warc.gz": members,
    "cut_members.warc.gz": cut_members,
    "plain.warc": b"".join,
    "one_stream.warc.gz": lambda records: gzip.compress(b"".join(records)),
    "frames.warc.zst": lambda records: b"".join(map(zstd, records)),
    "stream.warc.zst": lambda records: zstd(b"".join(records)),
    "stream.warc.xz": lambda records: lzma.compress(b"".join(records)),
    "stream.warc.bz2": lambda records: bz2.compress(b"".join(records)),
}


def numbered(number: int) -> bytes:
    return BODY + str(number).encode()


def archive(folder: Path, data: bytes, name: str = "a.warc.gz") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def index(
    root: Path, *files: Path, runner: Runner | None = None, consent: ArchiveConsent | None = None, **chosen: object
) -> Manifest:
    found = find_warcs([str(file) for file in files])
    return warcs(Folder(root), found, WarcSettings(**chosen), runner or Inline(), consent=consent)


def pages_of(root: Path, manifest: Manifest) -> list[Page]:
    folder = Folder(root) / manifest.folder
    return [page for output in manifest.outputs for page in read_pages(folder, output.name)]


def faults_of(root: Path, manifest: Manifest) -> list[tuple[str, str, str]]:
    rows = rejected_of(Folder(root), manifest)
    return [(row["url"], row["reason"], row["detail"]) for row in rows]
