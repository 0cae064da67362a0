"""Pages in WARC, the format of web archives, as the download writes them; `tasks.sources` reads them.

One response record per page, one gzip member per record, in the order of the URL list. The body is stored decoded, as
in Common Crawl. Two additional fields, `X-List-URL` and `X-List-Source`, hold the URL as in the list and the list's
name; archives from other sources lack them.
"""

import base64
import hashlib
import io
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple
from urllib.parse import quote

from warcio.statusandheaders import StatusAndHeaders, StatusAndHeadersParser

from gpt2train import __version__
from gpt2train.store.folder import FileRecord, Folder
from tasks.core.forgotten import Forgotten
from tasks.download.mime import checked_charset

# Characters that no header field may hold: line ends, NUL and other controls, lone surrogates. U+0085, U+2028 and
# U+2029 end lines for some readers.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PRINTABLE = re.compile("[\x20-\x7e]*")
_PARSER = StatusAndHeadersParser([], verify=False)
HTTP_RESPONSE = "application/http; msgtype=response"  # content type of a response, and of a revisit
MAX_FIELDS = 2**16  # bytes of the header of a record
BLOCK = 2**17  # bytes read at a time
MEMBER_BLOCK = 2**20  # bytes read at a time to find members without decompressing them
COMPRESSION = 6  # zlib level; 9 doubles the time per page and saves 1 % of the bytes


@dataclass(frozen=True)
class Page:
    """One fetched page."""

    url: str  # URL as in the URL list; the target URI in archives from other sources
    final_url: str  # URL after redirects
    content_type: str  # media type in lower case, without parameters; empty if the server sent none
    charset: str | None  # of the HTTP header, in lower case; without one (None) the page's meta tag counts
    body: bytes  # page as bytes, without Content-Encoding
    fetched_at: str  # time of the fetch, UTC, ISO 8601. Depends on the clock: keep it out of every hash
    sha256: str  # hash of the body, hex
    source: str  # name of the list or archive that the page comes from
    ip: str = ""  # address of the server; empty if unknown
    content_language: str = ""  # Content-Language of the HTTP header; empty if there is none
    fault: str = ""  # description of an invalid record; empty for a valid one. A page with a fault has no body


def encode_record(page: Page) -> bytes:
    """Encode a page as a gzip member with one WARC response record."""
    headers = [("Content-Type", _content_type(page)), ("Content-Length", str(len(page.body)))]
    if page.content_language and _PRINTABLE.fullmatch(page.content_language):
        headers.insert(1, ("Content-Language", page.content_language))
    fields = {
        "WARC-Date": page.fetched_at,
        "WARC-IP-Address": page.ip,
        "WARC-Payload-Digest": f"sha256:{page.sha256}",
        "X-List-URL": page.url,
        "X-List-Source": page.source,
    }
    if not page.ip:
        del fields["WARC-IP-Address"]
    name = f"{escaped(page.url)} {page.sha256}"
    return encode("response", page.final_url, page.body, name, fields, http=("200 OK", headers))


def encode_head(name: str, date: str) -> bytes:
    """Encode the first record of an archive (warcinfo): software and format."""
    name, date = escaped(name), escaped(date)
    software = f"software: gpt2train/{__version__}\r\nformat: WARC File Format 1.1\r\nisPartOf: {name}\r\n"
    fields = {"WARC-Date": date, "WARC-Filename": name}
    id_name = f"warcinfo {name} {date}"
    return encode("warcinfo", "", software.encode(), id_name, fields, "application/warc-fields")


def write_archive(folder: Folder, name: str, dates: Sequence[str], records: Iterable[bytes]) -> FileRecord:
    """Write an archive of the records of pages that were fetched at these times."""
    with folder.writing(name) as draft, draft.open("wb") as file:
        file.write(encode_head(name, min(dates)) if dates else EMPTY)
        file.writelines(records)
    return folder.record(name, rows=len(dates))


def encode(
    kind: str,
    uri: str,
    payload: bytes,
    id_name: str,
    fields: Mapping[str, str],
    content_type: str = HTTP_RESPONSE,
    http: tuple[str, Sequence[tuple[str, str]]] | None = None,
) -> bytes:
    """Encode a record as a gzip member; its id is the hash of `id_name`, so that equal pages give equal bytes.

    `http` has the status and the header fields of the HTTP head before the payload. The bytes are those of warcio's
    writer with these arguments, which takes 46 µs for a revisit instead of 26.
    """
    block = (_http_head(*http) if http is not None else b"") + payload
    head = {"WARC-Record-ID": record_name(id_name)} | {field: escaped(value) for field, value in fields.items()}
    head["WARC-Type"] = kind
    if uri:
        head["WARC-Target-URI"] = escaped(uri)
    digest = base64.b32encode(hashlib.sha1(block, usedforsecurity=False).digest()).decode()
    head |= {"WARC-Block-Digest": f"sha1:{digest}", "Content-Type": content_type, "Content-Length": str(len(block))}
    lines = "".join(f"{field}: {value}\r\n" for field, value in head.items())
    return _member(f"WARC/1.1\r\n{lines}\r\n".encode() + block + b"\r\n\r\n")


def _http_head(status: str, headers: Sequence[tuple[str, str]]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    if lines.isascii():
        return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode()
    return bytes(StatusAndHeaders(status, list(headers), protocol="HTTP/1.1").to_ascii_bytes())


def record_name(id_name: str) -> str:
    """Return the WARC-Record-ID of a record by the name that `encode` was given."""
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, id_name)}>"


def members(file: IO[bytes], limit: int) -> Iterator[bytes]:
    """Yield the gzip members of an archive of the download, found by their first bytes, without decompressing them.

    A member with these bytes in its middle comes in pieces, and members that do not begin with them come as one; what
    has more than `limit` bytes is cut. So the caller checks what it gets.
    """
    held = bytearray()
    while len(held) <= limit and (block := file.read(MEMBER_BLOCK)):
        searched, start = max(1, len(held) - len(MEMBER) + 1), 0
        held += block
        while (end := held.find(MEMBER, searched)) >= 0:
            yield bytes(held[start:end])
            start, searched = end, end + 1
        del held[:start]
    if held:
        yield bytes(held)


class Span(NamedTuple):
    """Place of a record in an archive, and its header."""

    head: StatusAndHeaders
    offset: int
    length: int  # bytes, compressed


def record_spans(file: IO[bytes]) -> Iterator[Span]:
    """Yield the records of an archive with one gzip member per record, in order.

    Raises:
        ValueError, EOFError, zlib.error: the archive is damaged, or a member is not one record.
    """
    position, data = 0, b""
    while data := data or file.read(BLOCK):
        member, head, unpacked, length = zlib.decompressobj(16 + zlib.MAX_WBITS), b"", 0, 0
        while not member.eof:
            if not (data := data or file.read(BLOCK)):
                raise EOFError(f"it ends within the record at byte {position:,}")
            found = member.decompress(data)
            head += found[: MAX_FIELDS - len(head)]
            unpacked += len(found)
            length += len(data) - len(member.unused_data)
            data = member.unused_data
        if unpacked:
            fields, end, _ = head.partition(b"\r\n\r\n")
            parsed = _PARSER.parse(io.BytesIO(fields + end))
            block = int(parsed.get_header("Content-Length") or -1)
            if not head.startswith(b"WARC/") or unpacked != len(fields) + len(end) + block + len(end):
                raise ValueError(f"no whole record at byte {position:,}")
            yield Span(parsed, position, length)
        position += length


def is_response(span: Span) -> bool:
    """Return True for the record of a page."""
    return span.head.get_header("WARC-Type") == "response"


def urls_of(head: StatusAndHeaders) -> tuple[str | None, ...]:
    """Return the URLs that a record names: as it was fetched, as it was listed, and of a revisit."""
    names = ("WARC-Target-URI", "X-List-URL", "WARC-Refers-To-Target-URI")
    return tuple(head.get_header(name) for name in names)


def is_forgotten(record: bytes, forgotten: Forgotten) -> bool:
    """Return True if a record, a gzip member, is of a forgotten page."""
    try:
        return any(forgotten.matches(*urls_of(span.head)) for span in record_spans(io.BytesIO(record)))
    except (zlib.error, ValueError, EOFError):
        return False


def escaped(value: str) -> str:
    """Percent-encode the characters of a header value that could end its line.

    Applied to every value, whether it comes from a server, a list or this program.
    """
    if value.isascii() and value.isprintable():
        return value
    return _CONTROLS.sub(lambda found: quote(found[0], errors="surrogatepass"), value)


def _content_type(page: Page) -> str:
    kind = page.content_type if _PRINTABLE.fullmatch(page.content_type) else ""
    charset = checked_charset(page.charset)
    return f"{kind}; charset={charset}" if charset else kind


def _member(data: bytes) -> bytes:
    compressor = zlib.compressobj(COMPRESSION, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # + 16: gzip header without a time
    return compressor.compress(data) + compressor.flush()


EMPTY = _member(b"")  # an archive without records: a file of zero bytes is not a valid gzip file
MEMBER = EMPTY[:10]  # the head that every member begins with
