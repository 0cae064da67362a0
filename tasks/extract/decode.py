"""Decoding of the bytes of a page, by the WHATWG Encoding standard where a browser would be right.

The bytes are decoded here and the engines get a `str`: given bytes, trafilatura would also decompress gzip, zstd or
brotli without a bound, which lets a decompression bomb pass all earlier size checks.

Two rules are not the standard's. Valid UTF-8 has precedence over what the server or the page declares, since text of
another encoding is hardly ever valid UTF-8 by chance, and servers often declare a wrong default. And a declaration that
most of the page's non-ASCII characters contradict is not followed; tolerances are shares of those characters, never of
the file, which is markup for the most part.
"""

import codecs
import contextlib
import re
from collections.abc import Iterator

import webencodings

from tasks.download.meta_tags import HEAD_BYTES, meta_tags

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose byte order mark is a prefix of it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Codecs that come nearer to the standard's decoder than the one that `webencodings` names.
CODECS = {"gbk": "gb18030", "iso2022_jp": "iso2022_jp_ext", "x-user-defined": "cp1252"}
WIDE = ("utf-16", "utf-32")  # every other byte of their markup is NUL
SEVEN_BIT = ("iso2022", "hz")  # their bytes are ASCII
ESCAPES = (b"\x1b", b"~{")  # with which their other characters begin
MAX_BROKEN = 0.05  # share of the non-ASCII characters that an encoding may leave undecodable
MAX_BROKEN_IF_DECLARED = 0.5  # the same of UTF-8 that the page or the server declares; East Asian text reaches .8
MAX_NOISE = 0.05  # maximum share of undecodable or control characters of a text page
CONTROLS = bytes([*range(9), *range(14, 32), 127])

_XML = re.compile(rb"\s{0,99}<\?xml[^>]{0,200}?\sencoding\s*=\s*[\"']([\w.:-]{2,40})[\"']")
_CONTENT_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)

# Signs that the standard's table of JIS X 0208 maps like Windows, and Python's codecs do not.
_JIS_SIGNS = str.maketrans("〜‖−¢£¬—", "～∥－￠￡￢―")
# What Python's codecs make of bytes that browsers read otherwise.
TRANSLATED: dict[str, dict[int, str]] = {
    "gb18030": {0xE5E5: "\u3000"},  # 0xA3A0, with which Chinese pages indent paragraphs
    "cp932": dict.fromkeys((0xF8F0, 0xF8F1, 0xF8F2, 0xF8F3), "\ufffd"),  # 0xA0, 0xFD to 0xFF: no characters
}


def decode(body: bytes, charset: str | None = None) -> tuple[str, str]:
    """Decode a page by byte order mark, UTF-8, declaration (header, XML, meta), detection, in this order; never fails.

    Returns:
        The text, and the name of the encoding.
    """
    for mark, encoding in BOMS:
        if body.startswith(mark):
            return body.decode(encoding, "replace"), encoding
    ascii_only = body.isascii()
    if b"\0" not in body[:HEAD_BYTES]:
        if ascii_only and not any(mark in body for mark in ESCAPES):
            return body.decode("ascii"), "utf-8"
        if not ascii_only:
            with contextlib.suppress(UnicodeDecodeError):
                return body.decode("utf-8"), "utf-8"
    declared = list(dict.fromkeys(filter(None, map(codec_name, (charset, *_stated_charsets(body))))))
    if (wide := _wide(body, declared)) is not None:
        return body.decode(wide, "replace"), wide
    if ascii_only:
        name = next((name for name in declared if name.startswith(SEVEN_BIT)), "" if declared else _detected(body))
        return (_decoded(body, name), name) if name.startswith(SEVEN_BIT) else (body.decode("ascii"), "utf-8")
    text, broken = _broken_utf_8(body)
    if broken <= (MAX_BROKEN_IF_DECLARED if "utf-8" in declared else MAX_BROKEN):
        return text, "utf-8"
    return min(_candidates(body, declared), key=lambda found: found[2])[:2]


def codec_name(label: str | None) -> str | None:
    """Name of Python's codec for an encoding label of the web; None if there is no such text encoding.

    A label that no browser knows counts if Python knows it.
    """
    label = (label or "").strip()
    known = webencodings.lookup(label)
    if known is not None and known.name != "replacement":
        return CODECS.get(known.codec_info.name, known.codec_info.name)
    try:
        info = codecs.lookup(label)
    except (LookupError, ValueError):  # unknown; ValueError for a label with a NUL
        return None
    # Python also registers transforms (base64, zip, rot13) as codecs; these are not text encodings.
    if not getattr(info, "_is_text_encoding", True) or info.name in ("idna", "punycode", "undefined"):
        return None
    return info.name


def count_undecodable(text: str, encoded: bytes | None = None) -> int:
    """Number of undecodable and control characters in a text; `encoded` is one without the former in UTF-8."""
    undecodable = 0
    if encoded is None:
        undecodable = text.count("�")
        encoded = text.encode("utf-8", "surrogatepass")  # in UTF-8, each byte below 128 is a character
    return undecodable + len(encoded) - len(encoded.translate(None, CONTROLS))


def _stated_charsets(body: bytes) -> Iterator[str]:
    """Labels in the page itself: of its XML declaration, then of its meta tags in their order."""
    if found := _XML.match(body):
        yield found[1].decode("ascii")
    for tag in meta_tags(body):
        label = tag.get("charset")
        if label is None and tag.get("http-equiv", "").strip().lower() == "content-type":
            content = _CONTENT_CHARSET.search(tag.get("content", ""))
            label = content[1] if content else None
        if label is not None:
            # The tag itself is in ASCII, so that it cannot announce UTF-16.
            yield "utf-8" if (codec_name(label) or "").startswith(WIDE) else label


def _wide(body: bytes, declared: list[str]) -> str | None:
    """Encoding of a page in UTF-16 or UTF-32, which has NUL bytes in its markup; None for any other page."""
    if b"\0" not in body[:HEAD_BYTES]:
        return None
    for name in declared:
        if name.startswith(WIDE):
            return name
    even, odd = body[:200:2].count(0), body[1:200:2].count(0)
    if max(even, odd) < 25 or max(even, odd) < 4 * min(even, odd):  # of 100 characters, of which some are markup
        return None
    return "utf-16-be" if even > odd else "utf-16-le"


def _broken_utf_8(body: bytes) -> tuple[str, float]:
    """Text of a body read as UTF-8, and the share of its non-ASCII characters that are none.

    A sequence that the end of the body cuts counts for neither.
    """
    text, read = codecs.utf_8_decode(body, "replace", False)
    broken = text.count("�") - body.count("�".encode())
    return text + "�" * (read < len(body)), _share(text, broken)


def _candidates(body: bytes, declared: list[str]) -> Iterator[tuple[str, str, float]]:
    """Text, encoding, and how much of it is undecodable, of each encoding in question; the first that fits ends it."""
    for name in (*(name for name in declared if not name.startswith((*WIDE, "utf-8"))), ""):
        name = name or _detected(body)
        text = _decoded(body, name)
        share = _share(text, text.count("�"))
        yield text, name, share
        if share <= MAX_BROKEN:
            return
    yield body.decode("cp1252", "replace"), "cp1252", 1.0


def _detected(body: bytes) -> str:
    """Encoding that the non-ASCII bytes of a page speak for, windows-1252 if they speak for none."""
    from chardetng_py import detect  # for the few pages that are not UTF-8 and declare nothing

    name = codec_name(detect(body)) or "cp1252"
    # The detector names KOI8-U for both, the one with more letters; a text without them is in KOI8-R.
    return "koi8-r" if name == "koi8-u" and body.decode(name) == body.decode("koi8-r") else name


def _decoded(body: bytes, name: str) -> str:
    if name.startswith(("euc_jp", "iso2022_jp")):
        return body.decode(name, "gpt2train.jis").translate(_JIS_SIGNS)
    text = body.decode(name, "replace")
    return text.translate(TRANSLATED[name]) if name in TRANSLATED else text


def _share(text: str, broken: int) -> float:
    """Share of the non-ASCII characters of a text."""
    other = len(text) - len(text.encode("ascii", "ignore"))
    return broken / other if other else 0.0


def _jis_extension(error: UnicodeError) -> tuple[str, int]:
    """Decode two bytes of the NEC and IBM rows of JIS X 0208, which Python knows in its codec cp932 alone."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    pair = error.object[error.start : error.start + 2]
    row, cell = (byte & 0x7F for byte in pair) if len(pair) == 2 else (0, 0)
    if min(row, cell) >= 0x21 and max(row, cell) <= 0x7E and (pair[0] ^ pair[1]) < 0x80:
        lead = (row - 0x21 >> 1) + 0x81
        trail = cell + (0x7E if row % 2 == 0 else 0x1F if cell < 0x60 else 0x20)
        sign = bytes([lead + 0x40 * (lead > 0x9F), trail]).decode("cp932", "replace")
        if "�" not in sign:
            return sign, error.start + 2
    return "�", error.start + 1


codecs.register_error("gpt2train.jis", _jis_extension)
