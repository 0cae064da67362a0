"""Entries of sitemaps, sitemap indexes and feeds (RSS, RDF, Atom, JSON Feed 1 and 1.1), XML without a tree.

Bounds: 50,000 entries of a file and 50 MiB of it, as the protocol of sitemaps has them (https://www.sitemaps.org/),
libxml2's depth of 256 elements, no entity but the five of XML, no external file. A file that declares entities is
refused before it is parsed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lxml import etree
from yarl import URL

from tasks.download.response_body import RATIO_FLOOR, Decoder, FetchRejectedError
from tasks.download.urls import join_or_none

MAX_ENTRIES = 50_000
MAX_FILE = 50 * 2**20  # bytes, decompressed
MAX_TEXT = 8192  # characters of a value
MAX_REFERENCES = 2_000_000  # characters `&` of a file: 50,000 URLs have fewer
Kind = Literal["index", "pages", "feed"]
ROOTS: Mapping[str, Kind] = {"sitemapindex": "index", "urlset": "pages", "rss": "feed", "rdf": "feed", "feed": "feed"}
ENTRIES: Mapping[Kind, tuple[str, ...]] = {"index": ("sitemap",), "pages": ("url",), "feed": ("item", "entry")}
BASE = "{http://www.w3.org/XML/1998/namespace}base"
LOCATIONS = ("loc", "link")
DATES = ("lastmod", "pubdate", "updated", "date")
_NAMED = {b"amp": b"&#38;", b"lt": b"&#60;", b"gt": b"&#62;", b"quot": b"&#34;", b"apos": b"&#39;"}
_REFERENCE = re.compile(
    rb"<!\[CDATA\[.*?(?:\]\]>|\Z)|&(?:#[0-9]{1,7};|#x[0-9a-fA-F]{1,6};)|&(?:(amp|lt|gt|quot|apos);)?", re.DOTALL
)
MAX_DECLARATION = 1000  # bytes
MAX_NOTICES = 2**16  # bytes
_START = re.compile(rb"<\?xml\s|<(?:sitemapindex|urlset|rss|feed)[\s>]", re.IGNORECASE)
_ENCODING = re.compile(rb"encoding\s*=\s*[\"']([^\"']*)")
_ASCII_BASED = re.compile(
    rb"utf-?8|us-ascii|ascii|iso-?8859-?\d+|latin-?\d|(?:windows-|cp)125\d|koi8-[ru]|gb2312|gbk|gb18030|big5|euc-(?:jp|kr|tw)"
    rb"|shift[_-]jis|tis-620|macintosh",
    re.IGNORECASE,
)

# Unlike XML, JSON is read into a tree, which takes up to 30 times the size of the file.
MAX_JSON = 8 * 2**20  # bytes
JSON_ADDRESSES = ("url", "external_url")  # of an item: its page, or the one that it is about
JSON_DATES = ("date_modified", "date_published")
_JSON_FEED = re.compile(r"https?://(?:www\.)?jsonfeed\.org/version/1(?:\.\d+)?/?")


@dataclass
class Entries:
    """Entries of one file."""

    kind: Kind
    # URL as stated, and time of its last change as stated or empty.
    entries: list[tuple[str, str]] = field(default_factory=list)
    left_out: int = 0  # number of further entries, beyond the maximum
    base: URL = field(default_factory=URL)  # address to which the URLs are relative: that from which the file came
    next_page: str = ""  # address of a feed's next page, with older items, as stated or empty


def read_entries(body: bytes, max_ratio: float, address: str = "") -> Entries:
    """Read a sitemap, index or feed, compressed by gzip or not; or a sitemap that is a text of one URL per line.

    `address` is that of the file; URLs below an `xml:base` of a feed are resolved with it.

    Raises:
        FetchRejectedError: `too_large`, `compression_ratio`, `content_encoding`, `xml_entities`, `not_a_sitemap`.
    """
    body = _without_odd_encoding(_without_notices(_utf8(_unpacked(body, max_ratio))))
    if body[:1000].lstrip().startswith(b"{"):
        items, next_page = read_json_feed(body)
        entries = _limited("feed", items)
        entries.next_page = next_page
        return entries
    if not body[:1000].lstrip().startswith(b"<"):
        return _text_entries(body)
    if b"<!ENTITY" in body:
        raise FetchRejectedError("xml_entities", "the file declares entities, which are not expanded")
    if body.count(b"&") > MAX_REFERENCES:
        raise FetchRejectedError("too_large", f"more than {MAX_REFERENCES:,} references")
    # After its first fault of a file, libxml2 drops every `&amp;`, and a bare `&` is such a fault.
    body = _REFERENCE.sub(_numeric, body)
    target = _Target(address)
    parser = etree.XMLParser(
        target=target, recover=True, resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        parser.feed(body)
        parser.close()
    except (etree.LxmlError, ValueError) as error:
        if target.found is None:
            raise FetchRejectedError("not_a_sitemap", str(error)[:100]) from error
    if target.found is None:
        raise FetchRejectedError("not_a_sitemap", f"the root is {target.root[:40] or 'missing'}")
    return target.found


def _numeric(found: re.Match[bytes]) -> bytes:
    """Return a reference as that of a character; other matches as they are."""
    return b"&#38;" if found[0] == b"&" else _NAMED[found[1]] if found[1] else found[0]


def _unpacked(body: bytes, max_ratio: float) -> bytes:
    if body.startswith(b"\x1f\x8b"):
        decoder = Decoder("gzip")
        limit = int(min(MAX_FILE, max(len(body) * max_ratio, RATIO_FLOOR)))
        found = decoder.feed(body, limit)
        if len(found) > limit:
            reason = "too_large" if limit == MAX_FILE else "compression_ratio"
            raise FetchRejectedError(reason, f"more than {limit:,} bytes when decompressed")
        return found
    if len(body) > MAX_FILE:
        raise FetchRejectedError("too_large", f"more than {MAX_FILE:,} bytes")
    return body


def _utf8(body: bytes) -> bytes:
    """Return a file in UTF-8 without a byte order mark; UTF-16 would hide a declaration of entities."""
    has_mark = body.startswith((b"\xff\xfe", b"\xfe\xff"))
    if has_mark or b"\0" in body[:2]:
        codec = "utf-16" if has_mark else "utf-16-be" if body.startswith(b"\0") else "utf-16-le"
        text = body.decode(codec, "replace")
        head, end, rest = text.partition("?>")
        return (rest if end and head.lstrip("\ufeff").startswith("<?xml") else text).encode("utf-8", "replace")
    return body.lstrip(b"\xef\xbb\xbf \t\r\n")  # scripts that are saved with a mark each send several


def _without_notices(body: bytes) -> bytes:
    """Return a file without what a script printed before it; a declaration of entities is no such thing."""
    start = None if body.startswith((b"{", b"<!")) else _START.search(body[:MAX_NOTICES])
    return body if start is None else body[start.start() :]


def _without_odd_encoding(body: bytes) -> bytes:
    """Return a file without its declaration if that names an encoding whose bytes are not those of ASCII.

    Some servers state UTF-16 above a file in UTF-8, and UTF-7 or EBCDIC would hide a declaration of entities.
    """
    head = body[:MAX_DECLARATION].lstrip()
    if not head.startswith(b"<?xml"):
        return body
    declaration, end, _ = head.partition(b"?>")
    found = _ENCODING.search(declaration)
    if end and (found is None or _ASCII_BASED.fullmatch(found[1])):
        return body
    return body.partition(b"?>")[2] if end else b""


def _text_entries(body: bytes) -> Entries:
    lines = [line.strip() for line in body.decode("utf-8", "replace").splitlines()]
    urls = [line for line in lines if line]
    if not urls or not all(line.startswith(("http://", "https://")) for line in urls[:100]):
        raise FetchRejectedError("not_a_sitemap", "neither XML nor one URL per line")
    return _limited("pages", [(url, "") for url in urls])


def _limited(kind: Kind, entries: list[tuple[str, str]]) -> Entries:
    return Entries(kind, entries[:MAX_ENTRIES], max(0, len(entries) - MAX_ENTRIES))


def read_json_feed(body: bytes) -> tuple[list[tuple[str, str]], str]:
    """Return the items of a feed in UTF-8, and its `next_url` as stated or empty.

    An item is its URL as stated, and the time of its last change as stated or empty.

    Raises:
        FetchRejectedError: `too_large`, or `not_a_sitemap` for any other JSON.
    """
    if len(body) > MAX_JSON:
        raise FetchRejectedError("too_large", f"more than {MAX_JSON:,} bytes of JSON")
    try:
        feed = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise FetchRejectedError("not_a_sitemap", f"not JSON: {error}"[:100]) from error
    if not isinstance(feed, dict) or not _JSON_FEED.fullmatch(_text(feed, "version")):
        raise FetchRejectedError("not_a_sitemap", "JSON without the version of JSON Feed 1")
    items = feed.get("items")
    if not isinstance(items, list):
        raise FetchRejectedError("not_a_sitemap", "a JSON Feed whose items are no list")
    found = [(_first(item, JSON_ADDRESSES), _first(item, JSON_DATES)) for item in items if isinstance(item, dict)]
    return [(url, date) for url, date in found if url], _text(feed, "next_url")


def _first(item: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of some fields that is a text and not empty."""
    return next((text for name in names if (text := _text(item, name))), "")


def _text(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    return value.strip() if isinstance(value, str) else ""


def _name(tag: str) -> str:
    """Return the name of an element in lower case, without its namespace."""
    return tag.rpartition("}")[2].lower()


class _Target:
    """Receiver of the parser's events; namespaces are ignored, but that of `xml:base`."""

    def __init__(self, address: str) -> None:
        self.found: Entries | None = None
        self.root = ""
        self._path: list[str] = []
        self._names: tuple[str, ...] = ()  # of entries, in this kind of file
        self._bases = [URL(address)]  # that of the file, and one for each open element
        self._text: list[str] = []
        self._size = 0
        self._url = self._date = self._guid = ""  # of the entry that is open
        self._is_permalink = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element."""
        name = _name(tag)
        if not self._path and not self.root:
            self.root = name
            if name in ROOTS:
                self.found = Entries(ROOTS[name])
                self._names = ENTRIES[ROOTS[name]]
        self._path.append(name)
        self._bases.append(self._base(attributes.get(BASE, "")))
        self._text, self._size = [], 0
        if name in self._names:
            self._url = self._date = self._guid = ""
        is_page = "html" in attributes.get("type", "html").lower()
        is_link = name == "link" and attributes.get("rel", "alternate").lower() == "alternate" and is_page
        in_item = self._path[-2:-1] in (["entry"], ["item"])  # some RSS states links as Atom does
        if is_link and in_item and not self._url and (target := attributes.get("href")):
            self._url = self._resolved(target[:MAX_TEXT])
        self._is_permalink = name == "guid" and attributes.get("isPermaLink", "true").lower() == "true"

    def data(self, text: str) -> None:
        """Take text of an element."""
        if self._size <= MAX_TEXT:
            self._text.append(text)
            self._size += len(text)

    def end(self, tag: str) -> None:
        """End an element; an entry that states a URL is taken."""
        name = _name(tag)
        inside = self._path[-2:-1]
        if inside and inside[0] in self._names:
            text = "".join(self._text).strip()
            if name in LOCATIONS and text and not self._url:
                self._url = self._resolved(text)
            elif name == "guid" and self._is_permalink and text.startswith(("http://", "https://")):
                self._guid = text
            elif name in DATES and not self._date:
                self._date = text
        if self._path:
            self._path.pop()
            self._bases.pop()
        if name in self._names and not self._url:
            self._url = self._guid
        if name in self._names and self.found is not None and self._url:
            if len(self.found.entries) < MAX_ENTRIES:
                self.found.entries.append((self._url, self._date))
            else:
                self.found.left_out += 1
            self._url = ""
        self._text, self._size = [], 0

    def _base(self, stated: str) -> URL:
        """Return the base of an element that states `xml:base`; that of the element around it without a usable one."""
        outer = self._bases[-1]
        if stated and self.found is not None and self.found.kind == "feed":
            base = join_or_none(outer, stated.strip())
            return base if base is not None and base.scheme in ("http", "https", "") else outer
        return outer

    def _resolved(self, text: str) -> str:
        """Return a URL as stated, or whole if an `xml:base` holds for it."""
        if self._bases[-1] == self._bases[0]:
            return text
        whole = join_or_none(self._bases[-1], text.strip())
        return text if whole is None else str(whole)  # the reason is recorded with the URL as it is stated

    def comment(self, text: str) -> None:
        """Pass over a comment."""

    def close(self) -> None:
        """End the file."""
