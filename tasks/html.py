"""From the bytes of a page to its main text: decode, then trafilatura. Runs in a worker process that may be killed.

The bytes are decoded here and trafilatura gets a `str`: given bytes it would also unpack gzip, zstd or brotli without
a bound, a bomb behind every size check that came before.
"""

import codecs
import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import charset_normalizer
import trafilatura
from htmldate import find_date
from lxml.html import HtmlElement
from trafilatura.utils import load_html

if sys.platform != "win32":
    import resource

# trafilatura warns for each page that it gives up; here such a page becomes a row with a reason.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
logging.getLogger("htmldate").setLevel(logging.CRITICAL)

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
NOISE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f�]")
SURROGATES = re.compile(r"[\ud800-\udfff]")
TITLE_LENGTH = 500


class Extracted(NamedTuple):
    """What a page holds, or why it holds nothing (`reason` is None where it does)."""

    text: str = ""
    title: str | None = None
    date: str | None = None
    reason: str | None = None
    detail: str = ""


def extract_text(
    body: bytes,
    charset: str | None,
    url: str,
    fast: bool = False,
    tables: bool = True,
    latest_date: str | None = None,
    memory_mb: int | None = None,
) -> Extracted:
    """Main text and title of one page.

    Args:
        body: the page's bytes.
        charset: as the HTTP header names it.
        url: for messages of the extraction and for the date search.
        fast: skip trafilatura's comparison with readability and justext.
        tables: keep the text of tables.
        latest_date: day of the fetch (ISO); where given, the publication date is searched up to it. Without such a
            bound the answer would depend on the day of the extraction.
        memory_mb: address space that this call may add to the worker.

    Returns:
        Text, title, date; or the reason `undecodable` or `no_text`.

    Raises:
        Anything that trafilatura or lxml raises for a hostile page; `MemoryError` at the limit.
    """
    html, encoding = decode(body, charset)
    noise = len(NOISE.findall(html))
    if noise > MAX_NOISE * len(html):
        share = noise / len(html)
        return Extracted(
            reason="undecodable", detail=f"{share:.0%} of the characters are noise when read as {encoding}"
        )
    with memory_limit(memory_mb):
        tree = load_html(html)
        if tree is None:
            return Extracted(reason="no_text", detail=f"no HTML tree in {len(body):,} bytes")
        # deduplicate=True would keep a memory per process: the text would depend on which worker saw which pages.
        text = trafilatura.extract(
            tree, url=url, fast=fast, include_comments=False, include_tables=tables, deduplicate=False
        )
        title = page_title(tree)
        date = None
        if latest_date:
            date = find_date(tree, extensive_search=False, original_date=True, url=url, max_date=latest_date[:10])
    text = storable(text or "").strip()
    if not text:
        return Extracted(reason="no_text", detail=f"no main text in {len(body):,} bytes")
    return Extracted(text=text, title=title, date=date)


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


def page_title(tree: HtmlElement) -> str | None:
    """The `<title>` of a page on one line; None where it has none."""
    title = " ".join(storable(tree.findtext(".//title") or "").split())
    return title[:TITLE_LENGTH] or None


def storable(text: str) -> str:
    """Remove what neither Arrow nor a tokenizer takes: NUL and lone surrogates."""
    return SURROGATES.sub("", text.replace("\0", ""))


@contextlib.contextmanager
def memory_limit(megabytes: int | None) -> Iterator[None]:
    """Let the process add at most so much address space meanwhile; past it Python raises MemoryError.

    Only where the system has /proc and RLIMIT_AS (Linux); elsewhere nothing is limited. The limit is lifted again,
    because the worker serves other steps as well.
    """
    if megabytes is None or not Path("/proc/self/statm").exists():
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + megabytes * 2**20
    bounds = [wanted, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _meta_charset(body: bytes) -> str | None:
    found = META_CHARSET.search(body[:META_BYTES])
    return found.group(1).decode("ascii", "replace") if found else None
