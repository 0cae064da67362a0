"""Media types from the Content-Type header, or from the first bytes of a page without that header.

Both follow the WHATWG MIME Sniffing standard (https://mimesniff.spec.whatwg.org/), with three differences. HTML is also
recognized after a byte order mark (plain text by the standard), an XML declaration before an `html` element makes a
page XHTML (XML by the standard), and any white space may follow a tag's name.
"""

import codecs
import re

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
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")


def parse_content_type(value: str | None) -> tuple[str, str | None]:
    """Parse a Content-Type header, which may be malformed.

    Returns:
        The media type in lower case, empty if it is missing or malformed; and the charset in lower case, None if it is
        missing or malformed.
    """
    essence, semicolon, parameters = (value or "").strip(_SPACES).partition(";")
    essence = essence.rstrip(_SPACES).lower()
    return essence if _ESSENCE.fullmatch(essence) else "", _charset(semicolon + parameters)


def checked_charset(value: str | None) -> str | None:
    """Return the name of a charset in lower case; None if it has characters that no charset name has."""
    return value.lower() if value and _CHARSET.fullmatch(value) else None


def checked_language(value: str | None) -> str:
    """Return a Content-Language header; empty if it is missing or not a list of language tags."""
    return value if value and _LANGUAGES.fullmatch(value) else ""


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


def _charset(parameters: str) -> str | None:
    for found in _PARAMETER.finditer(parameters):
        name, quoted, plain = found.groups()
        if name.lower() == "charset":
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain.rstrip(_SPACES)
            if charset := checked_charset(value):
                return charset
    return None
