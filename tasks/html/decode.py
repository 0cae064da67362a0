"""From the bytes of a page to text.

The bytes are decoded here and trafilatura gets a `str`: given bytes it would also unpack gzip, zstd or brotli without
a bound, a bomb behind every size check that came before.
"""

import codecs
import contextlib
import re

import charset_normalizer

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its first half
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What browsers read under these names (WHATWG Encoding): pages that say Latin-1 hold Windows quotes and dashes.
SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "euc_kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030"}
# Encodings whose text is also valid ASCII or UTF-8 byte for byte: the declaration must be believed.
NOT_ASCII = ("utf-16", "utf-32", "utf-7", "iso2022", "hz")
META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
META_BYTES = 4096  # browsers look at the first 1,024; real pages put scripts before the tag
SAMPLE = 5000  # bytes of head and of middle that the detection sees
MAX_BROKEN = 0.01  # share of undecodable characters up to which an encoding is believed
MAX_NOISE = 0.05  # share of undecodable or control characters above which a page is no text
CONTROLS = bytes([*range(9), *range(14, 32), 127])
SURROGATES = re.compile(r"[\ud800-\udfff]")


def decode(body: bytes, charset: str | None = None) -> tuple[str, str]:
    """Decode a page: byte order mark, UTF-8 where it is valid, HTTP header, meta tag, detection; never an error.

    Valid UTF-8 goes before the declarations, since text of another encoding is hardly ever valid UTF-8 by chance while
    servers often send a wrong default.

    Returns:
        The text, and the name of the encoding that was used (ending in ", replaced" where it fits badly).
    """
    for mark, encoding in BOMS:
        if body.startswith(mark):
            return body.decode(encoding, "replace"), encoding
    header, meta = codec_name(charset), codec_name(_meta_charset(body))
    declared = [name for name in (header, meta) if name]
    if header and header.startswith(NOT_ASCII):
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
    """Python's codec for an encoding label of the web; None where there is no such text encoding."""
    try:
        info = codecs.lookup((label or "").strip())
    except (LookupError, ValueError):  # unknown; ValueError for a label with a NUL
        return None
    # Python also registers transforms (base64, zip, rot13) as codecs; they are no encodings of text.
    if not getattr(info, "_is_text_encoding", True) or info.name in ("idna", "punycode", "undefined"):
        return None
    return SUPERSETS.get(info.name, info.name)


def noise(text: str) -> int:
    """How many characters of a text are undecodable or control characters."""
    encoded = text.encode("utf-8", "surrogatepass")  # where each byte below 128 is a character of its own
    return len(encoded) - len(encoded.translate(None, CONTROLS)) + text.count("�")


def storable(text: str) -> str:
    """Remove what neither Arrow nor a tokenizer takes: NUL and lone surrogates."""
    return SURROGATES.sub("", text.replace("\0", ""))


def _meta_charset(body: bytes) -> str | None:
    found = META_CHARSET.search(body[:META_BYTES])
    return found.group(1).decode("ascii", "replace") if found else None
