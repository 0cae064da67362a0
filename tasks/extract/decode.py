"""Decoding of the bytes of a page.

The bytes are decoded here and trafilatura gets a `str`: given bytes, it would also decompress gzip, zstd or brotli
without a bound, which lets a decompression bomb pass all earlier size checks.
"""

import codecs
import contextlib
import re

import charset_normalizer

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose byte order mark is a prefix of it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Encodings that browsers use for these labels (WHATWG Encoding): pages declared as Latin-1 contain Windows quotes.
SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "euc_kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030"}
# Encodings whose text can also be valid ASCII or UTF-8 byte for byte: only the declaration decides.
AMBIGUOUS = ("utf-16", "utf-32", "utf-7", "iso2022", "hz")
META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
META_BYTES = 4096  # browsers scan the first 1,024; real pages have scripts before the tag
SAMPLE = 5000  # bytes of the beginning and of the middle that are passed to the detection
MAX_BROKEN = 0.01  # maximum share of undecodable characters for a declared encoding to be accepted
MAX_NOISE = 0.05  # maximum share of undecodable or control characters of a text page
CONTROLS = bytes([*range(9), *range(14, 32), 127])


def decode(body: bytes, charset: str | None = None) -> tuple[str, str]:
    """Decode a page by byte order mark, valid UTF-8, HTTP header, meta tag, detection, in this order; never fails.

    Valid UTF-8 has precedence over the declarations: text of another encoding is hardly ever valid UTF-8 by chance,
    and servers often declare a wrong default.

    Returns:
        The text, and the name of the encoding (ending in ", replaced" if no encoding fits).
    """
    for mark, encoding in BOMS:
        if body.startswith(mark):
            return body.decode(encoding, "replace"), encoding
    header, meta = codec_name(charset), codec_name(_meta_charset(body))
    declared = [name for name in (header, meta) if name]
    if header and header.startswith(AMBIGUOUS):
        return body.decode(header, "replace"), header
    if not (meta and meta.startswith(("iso2022", "hz"))):  # a meta tag in ASCII cannot announce UTF-16
        with contextlib.suppress(UnicodeDecodeError):
            return body.decode("utf-8"), "utf-8"
    for encoding in [name for name in (*declared, "utf-8") if not name.startswith(("utf-16", "utf-32", "utf-7"))]:
        text = body.decode(encoding, "replace")
        if text.count("�") <= MAX_BROKEN * len(text):
            return text, encoding
    middle = len(body) // 2
    guess = charset_normalizer.from_bytes(body[:SAMPLE] + body[middle : middle + SAMPLE]).best()
    if guess is not None:
        return body.decode(guess.encoding, "replace"), guess.encoding
    return body.decode("utf-8", "replace"), "utf-8, replaced"


def codec_name(label: str | None) -> str | None:
    """Name of Python's codec for an encoding label of the web; None if there is no such text encoding."""
    try:
        info = codecs.lookup((label or "").strip())
    except (LookupError, ValueError):  # unknown; ValueError for a label with a NUL
        return None
    # Python also registers transforms (base64, zip, rot13) as codecs; these are not text encodings.
    if not getattr(info, "_is_text_encoding", True) or info.name in ("idna", "punycode", "undefined"):
        return None
    return SUPERSETS.get(info.name, info.name)


def count_undecodable(text: str, encoded: bytes | None = None) -> int:
    """Number of undecodable and control characters in a text; `encoded` is the text in UTF-8, where it is at hand."""
    if encoded is None:
        encoded = text.encode("utf-8", "surrogatepass")  # in UTF-8, each byte below 128 is a character
    return len(encoded) - len(encoded.translate(None, CONTROLS)) + text.count("�")


def _meta_charset(body: bytes) -> str | None:
    found = META_CHARSET.search(body[:META_BYTES])
    return found.group(1).decode("ascii", "replace") if found else None
