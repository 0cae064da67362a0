"""Media types from the Content-Type fields and from the first bytes of a page.

They follow the WHATWG's standards Fetch (several fields) and MIME Sniffing (https://mimesniff.spec.whatwg.org/), with
differences. HTML is also recognized after a byte order mark (plain text by the standard), an XML declaration before an
`html` element makes a page XHTML (XML by the standard), and any white space may follow a tag's name. What is sent as
HTML is looked at too, where a browser would show the bytes of a file as letters.
"""

import codecs
import re
from collections.abc import Iterator

import orjson

HTML_TYPES = ("text/html", "application/xhtml+xml")
UNKNOWN_TYPES = ("", "unknown/unknown", "application/unknown", "*/*")  # for these the body is sniffed
SNIFFED_BYTES = 1445  # the standard's "resource header"

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_ESSENCE = re.compile(rf"{_TOKEN}{{1,127}}/{_TOKEN}{{1,127}}")
_PARAMETER = re.compile(rf';[ \t\r\n]*({_TOKEN}+)=(?:"((?:[^"\\]|\\.)*)|([^;"][^;]*))', re.DOTALL)
# Matches every label of the WHATWG Encoding standard and every IANA name without parentheses; the longest has 45
# characters.
_CHARSET = re.compile(r"[A-Za-z0-9._:+-]{1,64}")
_LANGUAGES = re.compile(r"[A-Za-z0-9-]{1,40}(?:, ?[A-Za-z0-9-]{1,40}){0,9}")
_SPACES = " \t\r\n"

_TAGS = b"!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p"
_HTML = re.compile(rb"[\t\n\f\r ]*<(?:(?:" + _TAGS + rb")[\t\n\f\r />]|!--)", re.IGNORECASE)
_XHTML = re.compile(rb"[\t\n\f\r ]*<\?xml[ \t\n\r].*?\?>.*?<(?:!doctype )?html[\s>]", re.IGNORECASE | re.DOTALL)
_WIDE = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_FILES = tuple(
    (re.compile(mark, re.DOTALL), kind)
    for mark, kind in (
        (rb"%PDF-", "application/pdf"),
        (rb"%!PS-Adobe-", "application/postscript"),
        (rb"\{\\rtf", "application/rtf"),
        (rb"PK\x03\x04", "application/zip"),
        (rb"\x1f\x8b\x08", "application/gzip"),
        (rb"BZh[1-9]1AY&SY", "application/x-bzip2"),
        (rb"\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|\x28\xb5\x2f\xfd", "application/x-archive"),
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
        (rb"\x7fELF|MZ.{0,62}\x00{4}|SQLite format 3\x00", "application/octet-stream"),
        (rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF.{4}WEBPVP|BM.{4}\x00{4}|\x00\x00[\x01\x02]\x00", "image/*"),
        (rb"RIFF.{4}WAVE|OggS\x00|ID3[\x02-\x04]|fLaC\x00|MThd\x00\x00\x00\x06|FORM.{4}AIFF", "audio/*"),
        (rb"RIFF.{4}AVI |.{4}ftyp|\x1aE\xdf\xa3|FLV\x01", "video/*"),
        (rb"wOFF|wOF2|OTTO\x00|\x00\x01\x00\x00", "font/*"),
    )
)
# A feed is XML of which browsers show nothing but an empty page.
_FEED = re.compile(rb"(?>\s+|<!--.*?-->|<\?.*?\?>|<![^>]*>)*+<(rss|feed|rdf:RDF)[\s>]", re.DOTALL)
_VALUE = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*(?:"|$))+', re.DOTALL)
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")


def parse_content_type(*fields: str | None) -> tuple[str, str | None]:
    """Parse the Content-Type fields of a response, which may be malformed: the last valid type counts.

    Returns:
        The media type in lower case, empty if none is valid; and the charset in lower case, None if it is missing or
        malformed. A charset holds for later fields of the same type.
    """
    kind, charset = "", None
    for value in _values(fields):
        essence, semicolon, parameters = value.strip(_SPACES).partition(";")
        essence = essence.rstrip(_SPACES).lower()
        if not _ESSENCE.fullmatch(essence) or (kind and essence == "*/*"):
            charset = charset if kind else _charset(semicolon + parameters)
            continue
        charset = _charset(semicolon + parameters) or (charset if essence == kind else None)
        kind = essence
    return kind, charset


def checked_charset(value: str | None) -> str | None:
    """Return the name of a charset in lower case; None if it has characters that no charset name has."""
    return value.lower() if value and _CHARSET.fullmatch(value) else None


def checked_language(value: str | None) -> str:
    """Return a Content-Language header; empty if it is missing or not a list of language tags."""
    return value if value and _LANGUAGES.fullmatch(value) else ""


def type_of(declared: str, body: bytes) -> str:
    """Type of a body that was sent as `declared`: sniffed if that says nothing, or if it says HTML of another file."""
    if declared in UNKNOWN_TYPES:
        return sniff_html(body)
    return (_other_type(body) or declared) if declared in HTML_TYPES else declared


def wrong_type(declared: str, kind: str) -> str:
    """Detail of the rejection of a body whose bytes are not those of HTML."""
    if declared in UNKNOWN_TYPES:
        return "none given, and the page does not begin as HTML does"
    return f"sent as {declared}, but the bytes are those of {kind}"


def sniff_html(body: bytes) -> str:
    """Return the type of a page without a Content-Type: one of `HTML_TYPES`, or empty if the body is not HTML."""
    head = body[:SNIFFED_BYTES].removeprefix(codecs.BOM_UTF8)
    for mark, encoding in _WIDE:
        if head.startswith(mark):
            head = head[2:].decode(encoding, "replace").encode("utf-8", "replace")
    if _BINARY.search(head):
        return ""
    if _HTML.match(head):
        return "text/html"
    return "application/xhtml+xml" if _XHTML.match(head) else ""


def _other_type(body: bytes) -> str:
    """Type of a file that is no HTML; empty if it may be HTML."""
    for mark, kind in _FILES:
        if mark.match(body):
            return kind
    text = body[:SNIFFED_BYTES].removeprefix(codecs.BOM_UTF8).lstrip()
    if (feed := _FEED.match(text)) is not None:
        return "application/atom+xml" if feed[1].lower() == b"feed" else "application/rss+xml"
    if text.startswith((b"{", b"[")) and body.rstrip().endswith((b"}", b"]")):
        try:
            orjson.loads(body.removeprefix(codecs.BOM_UTF8))
        except orjson.JSONDecodeError:
            return ""
        return "application/json"
    return ""


def _values(fields: tuple[str | None, ...]) -> Iterator[str]:
    """Split fields at the commas outside of quotation marks."""
    for field in fields:
        yield from (found[0] for found in _VALUE.finditer(field or ""))


def _charset(parameters: str) -> str | None:
    for found in _PARAMETER.finditer(parameters):
        name, quoted, plain = found.groups()
        if name.lower() == "charset":
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain.rstrip(_SPACES)
            if charset := checked_charset(value):
                return charset
    return None
