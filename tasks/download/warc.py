"""Fetched pages in WARC, the web archives' own format: written by the download, read by the extraction.

One response record a page, one gzip member a record, in the order of the URL list. The body is stored
decoded, as in Common Crawl. Two fields of our own, `X-List-URL` and `X-List-Source`, hold the URL as it stood in the
list and the list's name; archives made elsewhere lack them and are read just as well.
"""

import hashlib
import io
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed
from warcio.recordloader import ArcWarcRecord
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from gpt2train import __version__
from gpt2train.errors import RunError
from tasks.storage import Folder

HTML_TYPES = ("text/html", "application/xhtml+xml")
MAX_BYTES = 64 * 2**20  # of one body when reading archives made elsewhere; ours are capped by the download
COMPRESSION = 6  # zlib: 9 takes twice the time of a page for 1 % of the bytes


@dataclass(frozen=True)
class Page:
    """One fetched page.

    Attributes:
        url: as it stood in the URL list (the archive's target URI where the archive was made elsewhere).
        final_url: after redirects.
        content_type: media type in lower case, without parameters; empty where the server gave none.
        charset: as the HTTP header names it, lower case; None where it does not (then the page's own meta tag counts).
        body: decoded bytes of the page.
        fetched_at: UTC, ISO 8601. Depends on the clock: keep it out of everything that is hashed.
        sha256: of the body, hex.
        source: name of the list or archive that the page comes from.
        truncated: True when the body was cut at the reader's cap.
        ip: the address that the page came from; empty where it is not known.
        content_language: as the HTTP header says; empty where it does not.
    """

    url: str
    final_url: str
    content_type: str
    charset: str | None
    body: bytes
    fetched_at: str
    sha256: str
    source: str
    truncated: bool = False
    ip: str = ""
    content_language: str = ""


def read_pages(folder: Folder, name: str, *, max_bytes: int = MAX_BYTES) -> Iterator[Page]:
    """HTML pages of one WARC file, in order, one in memory at a time.

    Takes what the download wrote and any other WARC (Common Crawl). Records that are not an HTML response with status
    200 are passed over.

    Raises:
        RunError: the archive is damaged; the message names the file and the record.
    """
    place = f"{folder.url}/{name}"
    with folder.open(name) as file:
        number = 0
        try:
            for number, record in enumerate(ArchiveIterator(file), start=1):
                page = _page(record, name, max_bytes, f"{place}, record {number}")
                if page is not None:
                    yield page
        except (ArchiveLoadFailed, EOFError, zlib.error) as error:
            raise RunError(f"{place} is damaged after record {number} ({error}); remove it and run again") from error


def write_pages(path: Path, pages: Iterable[Page]) -> int:
    """Write pages as one `.warc.gz` file and return how many.

    The bytes depend on the pages alone: the record's id is a hash of its URL and content.
    """
    count = 0
    with path.open("wb") as file:
        for page in pages:
            file.write(encode_record(page))
            count += 1
        if not count:
            file.write(EMPTY)
    return count


def encode_record(page: Page) -> bytes:
    """One page as a gzip member that holds one WARC response record."""
    headers = [("Content-Type", _content_type(page)), ("Content-Length", str(len(page.body)))]
    if page.content_language:
        headers.insert(1, ("Content-Language", page.content_language))
    buffer = io.BytesIO()
    writer = WARCWriter(buffer, gzip=False, warc_version="1.1")
    record = writer.create_warc_record(
        page.final_url,
        "response",
        payload=io.BytesIO(page.body),
        length=len(page.body),
        http_headers=StatusAndHeaders("200 OK", headers, protocol="HTTP/1.1"),
        warc_headers_dict={
            "WARC-Record-ID": f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, page.url + ' ' + page.sha256)}>",
            "WARC-Date": page.fetched_at,
            **({"WARC-IP-Address": page.ip} if page.ip else {}),
            "WARC-Payload-Digest": f"sha256:{page.sha256}",
            "X-List-URL": page.url,
            "X-List-Source": page.source,
        },
    )
    writer.write_record(record)
    return _member(buffer.getvalue())


def encode_head(name: str, date: str) -> bytes:
    """The record that an archive begins with: what wrote it, and how."""
    software = f"software: gpt2train/{__version__}\r\nformat: WARC File Format 1.1\r\nisPartOf: {name}\r\n"
    buffer = io.BytesIO()
    writer = WARCWriter(buffer, gzip=False, warc_version="1.1")
    record = writer.create_warc_record(
        "",
        "warcinfo",
        payload=io.BytesIO(software.encode()),
        warc_content_type="application/warc-fields",
        warc_headers_dict={
            "WARC-Record-ID": f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'warcinfo {name} {date}')}>",
            "WARC-Date": date,
            "WARC-Filename": name,
        },
    )
    writer.write_record(record)
    return _member(buffer.getvalue())


def parse_content_type(value: str | None) -> tuple[str, str | None]:
    """Media type (lower case) and charset (lower case, or None) of a Content-Type header."""
    message = Message()
    message["Content-Type"] = value or ""
    charset = message.get_content_charset()
    return (message.get_content_type() if "/" in (value or "") else ""), charset


def _content_type(page: Page) -> str:
    return f"{page.content_type}; charset={page.charset}" if page.charset else page.content_type


def _member(data: bytes) -> bytes:
    compressor = zlib.compressobj(COMPRESSION, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # + 16: a gzip header, no time in it
    return compressor.compress(data) + compressor.flush()


def _page(record: ArcWarcRecord, name: str, max_bytes: int, place: str) -> Page | None:
    if record.rec_type != "response" or record.http_headers is None or record.http_headers.get_statuscode() != "200":
        return None
    content_type, charset = parse_content_type(record.http_headers.get_header("Content-Type"))
    if content_type not in HTML_TYPES:
        return None
    fields: Mapping[str, str] = record.rec_headers
    body = record.content_stream().read(max_bytes + 1)
    truncated = len(body) > max_bytes
    body = body[:max_bytes]
    sha256 = hashlib.sha256(body).hexdigest()
    declared = fields.get("WARC-Payload-Digest", "") or ""
    if declared.startswith("sha256:") and not truncated and declared != f"sha256:{sha256}":
        raise RunError(f"{place}: the page does not have the digest it was written with; remove the file and run again")
    target = fields.get("WARC-Target-URI", "") or ""
    return Page(
        url=fields.get("X-List-URL") or target,
        final_url=target,
        content_type=content_type,
        charset=charset,
        body=body,
        fetched_at=fields.get("WARC-Date", "") or "",
        sha256=sha256,
        source=fields.get("X-List-Source") or name,
        truncated=truncated,
        ip=fields.get("WARC-IP-Address", "") or "",
        content_language=record.http_headers.get_header("Content-Language") or "",
    )


EMPTY = _member(b"")  # an archive without records: a file of no bytes is no gzip file
