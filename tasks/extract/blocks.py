"""Blocks of a page: one walk over the tree; each paragraph, heading, list item, table row and code block once."""

import sys
from collections import defaultdict
from typing import NamedTuple

from lxml.html import HtmlElement

from gpt2train.data.text_units import without_invisible
from tasks.extract.attribute_names import DROPPED_TAGS
from tasks.extract.attribute_rules import NEUTRAL, AttributeRules, Verdict
from tasks.extract.mathml import formula_text
from tasks.extract.page_type import ARTICLE, DOCUMENTATION, FORUM

BLOCK_TAGS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "center",
        "dd",
        "details",
        "dir",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figure",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hgroup",
        "hr",
        "html",
        "li",
        "listing",
        "main",
        "ol",
        "p",
        "plaintext",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "ul",
        "xmp",
        "caption",
        "legend",
        "label",
    ]
)
HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
CODE = frozenset(["pre", "listing", "xmp", "plaintext"])
# Classes of Doxygen, which has elements of its own for code (a `div` a line) and titles.
CODE_BLOCK, TITLE = "fragment", "headertitle"
SUBTITLES = ("sub-title", "subTitle")  # of Javadoc: module and package, above the name of the class
CODE_TABLES = ("RktBlk", "SVerbatim")  # of Scribble: code with a row a line
CELLS = frozenset(("td", "th"))
# Containers whose share of links is tested when they end.
WEIGHED = frozenset(["div", "section", "ul", "ol", "dl", "p", "table", "header", "form", "figure", "article", "center"])

LISTS = frozenset(["ul", "ol"])
PERMALINKS = frozenset("#¶§🔗")  # signs that link to the heading beside them
KEPT, LINKS, MARKED, COMMENT, TOC, HIDDEN = range(6)  # reasons for which a block is dropped
MIN_RUNNING = 80  # characters of a block that is running text wherever it stands
MAX_DROPPED = 400  # characters of running text of a container that is dropped without a look at the whole page
MAX_DROPPED_SHARE = 0.5  # of the page's running text, in a container that is dropped
MAX_CARD = 500  # characters of a card, an announcement under a link without text
MIN_CARDS = 3  # cards with the same class; fewer may be the text of a short article
CARDS = frozenset(["div", "li", "article", "section"])
MAX_FRAMES = 3 * 2048  # of the walk: three an element, on at most 2,048 levels (libxml2)
MAX_FORM = 500  # characters of a form that is no text; some sites are one form


class Block:
    """Block of text.

    Attributes:
        text: one line; of code, its lines.
        kind: `p`, `h`, `li`, `td`, `pre`, or "" for text outside of these.
        size: characters.
        links: characters in links.
        running: characters of running text, which headings, short lines and links are not.
        dropped: reason for which the block is no text of the page, `KEPT` if none.
    """

    __slots__ = ("dropped", "kind", "links", "running", "size", "text")

    def __init__(self, text: str, kind: str, links: int) -> None:
        self.text, self.kind, self.size, self.dropped = text, kind, len(text), KEPT
        self.links = min(links, self.size)
        runs = kind != "h" and (self.size > MIN_RUNNING or kind in ("p", "pre", "li")) and 2 * self.links < self.size
        self.running = self.size - self.links if runs else 0


class Contents(NamedTuple):
    """Blocks of a container, and the characters of those that were not dropped when it ended."""

    start: int
    end: int
    size: int
    links: int
    running: int


class Candidate(NamedTuple):
    """Container that may hold the main content; `level` as in `attribute_rules`."""

    level: int
    start: int
    end: int
    tag: str
    name: str


class Walk:
    """One pass over the elements of a page.

    Args:
        rules: rules by tag and attributes.
        page: type of the page.
        tables: keep the text of tables.

    Attributes:
        blocks: all blocks, in order.
        posts: first and last block of each post of a forum, inner containers before outer ones.
        candidates: containers that may hold the main content, inner ones first.
        size, links, running: characters of the blocks that are not dropped.
    """

    def __init__(self, rules: AttributeRules, page: str, tables: bool = True) -> None:
        self.rules, self.page, self.tables = rules, page, tables
        self.blocks: list[Block] = []
        self.posts: list[tuple[int, int]] = []
        self.candidates: list[Candidate] = []
        self.size = self.links = self.running = self.overlays = 0
        self._pieces: list[str] = []  # of the block that is being read
        self._linked = 0  # characters of links in them
        self._in_links = 0  # depth of links
        self._marker = ""  # of the list item that begins
        self._cards: defaultdict[tuple[str, str | None], list[Contents]] = defaultdict(list)
        self._doubtful: list[tuple[Contents, int]] = []

    def read(self, element: HtmlElement, kind: str) -> None:
        """Read the text and the children of an element, but not its tail."""
        # Written out for text before and after each child: a page has 500 elements, and a call for each piece takes
        # a tenth of the time of the walk.
        pieces = self._pieces
        if text := element.text:
            if self._in_links:
                self._linked += len(text)
            if pieces or not text.isspace():  # white space at the start of a block is none of its text
                pieces.append(text)
        for child in element:
            tag = child.tag
            if tag not in DROPPED_TAGS and isinstance(tag, str):
                self._element(child, tag, kind)
            if text := child.tail:
                if self._in_links:
                    self._linked += len(text)
                if pieces or not text.isspace():
                    pieces.append(text)

    def flush(self, kind: str) -> None:
        """End the current block."""
        links, self._linked = self._linked, 0
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        if not text.isascii():
            text = without_invisible(text)
        if text := " ".join(text.split()).removesuffix(" |"):
            if kind == "h" and self.page == FORUM:  # posts are the items of a list in some templates
                self._marker = ""
            self._add(Block(self._marker + text, kind, links))
            self._marker = ""

    def settle(self) -> None:
        """Drop the large marked containers, except those that hold most of the page's text."""
        for alike in self._cards.values():
            for held in alike if len(alike) >= MIN_CARDS else ():
                self._drop(held, LINKS)
        for reason in (COMMENT, HIDDEN, MARKED, TOC, LINKS):
            total = self.running
            for held, found in self._doubtful:
                if found == reason:
                    live = sum(one.running for one in self.blocks[held.start : held.end] if not one.dropped)
                    if reason == COMMENT or live < MAX_DROPPED_SHARE * total:
                        self._drop(held, reason)

    def _element(self, element: HtmlElement, tag: str, kind: str) -> None:
        if tag in BLOCK_TAGS:
            verdict = self.rules.verdict(element, tag)
            if not (verdict.drop or (tag == "table" and not self.tables)):
                self._container(element, tag, verdict, kind)
            return
        if tag == "br":
            self.flush(kind)
            return
        if tag == "math":
            self._pieces.append(formula_text(element))
            return
        if not (element.text or len(element)):  # an image or an icon
            if tag == "a" and element.get("href"):
                self.overlays += 1
            return
        if tag == "a" and element.text in PERMALINKS and (element.get("href") or "").startswith("#"):
            return
        verdict = self.rules.verdict(element, tag)
        if verdict.post or (tag == "code" and element.find("br") is not None):
            self._container(element, tag, verdict, kind)
        elif verdict is NEUTRAL or not (verdict.drop or verdict.marked or verdict.hidden):
            self._in_links += tag == "a"
            self.read(element, kind)
            self._in_links -= tag == "a"
        elif verdict.drop:
            return
        elif next(element.iter(*BLOCK_TAGS), None) is not None:
            self._container(element, tag, verdict, kind)

    def _container(self, element: HtmlElement, tag: str, verdict: Verdict, kind: str) -> None:
        if tag not in CELLS:
            self.flush(kind)
        elif self._pieces and not "".join(self._pieces[-3:]).isspace():
            self._pieces.append(" | ")
        # These are dropped whatever they hold, so they are not read: a sixth of the time.
        if (
            verdict.level != 0
            and not verdict.toc
            and (
                (verdict.comments and self.page == ARTICLE)
                or ((verdict.marked or verdict.hidden) and _is_short(element, MAX_DROPPED))
            )
        ):
            return
        start, size, links, running, overlays = len(self.blocks), self.size, self.links, self.running, self.overlays
        # Inline code comes here if it has several lines.
        name = element.get("class")
        if tag in CODE or tag == "code" or (name == CODE_BLOCK and tag == "div") or name in CODE_TABLES:
            self._code(element)
        else:
            is_title = name == TITLE or (name in SUBTITLES and self.page == DOCUMENTATION)
            own = "h" if is_title else _kind(tag, kind)
            if tag == "li":
                self._marker = "- "
            self.read(element, own)
            if tag not in CELLS or len(self.blocks) > start:
                self.flush(own)
            if tag == "li":
                self._marker = ""
        if len(self.blocks) > start:
            held = Contents(start, len(self.blocks), self.size - size, self.links - links, self.running - running)
            if (
                self.overlays > overlays
                and tag in CARDS
                and self.page == ARTICLE
                and held.size < MAX_CARD
                and not held.links
            ):
                self._cards[tag, element.get("class")].append(held)
            self.overlays = overlays if tag in CARDS else self.overlays
            if verdict.post:
                self.posts.append((start, len(self.blocks)))
            self._weigh(element, tag, verdict, held)

    def _code(self, element: HtmlElement) -> None:
        for line_break in element.iter("br"):
            line_break.tail = "\n" + (line_break.tail or "")
        parts: list[str] = []
        self._raw(element, parts)
        text = "".join(parts).replace("\r\n", "\n").replace("\xa0", " ").expandtabs(4)
        lines = [line.rstrip() for line in text.split("\n")]
        full = [number for number, line in enumerate(lines) if line]
        if full:
            self._add(Block("\n".join(lines[full[0] : full[-1] + 1]), "pre", 0))

    def _raw(self, element: HtmlElement, parts: list[str]) -> None:
        if element.text:
            parts.append(element.text)
        for child in element:
            if isinstance(child.tag, str):
                verdict = self.rules.verdict(child, child.tag)
                if not (verdict.drop or verdict.marked or verdict.hidden):
                    self._raw(child, parts)
                    if child.tag == "tr" and not (parts and parts[-1].endswith("\n")):
                        parts.append("\n")
                    if child.tag == "div" and not (child.tail or "").startswith(("\n", "\r\n")):
                        parts.append("\n")
            if child.tail:
                parts.append(child.tail)

    def _weigh(self, element: HtmlElement, tag: str, verdict: Verdict, held: Contents) -> None:
        """Weigh a container when it ends, by its marks and its share of links."""
        if not held.size:
            return
        reason = self._reason(tag, verdict, held)
        strong = verdict.level == 0 and reason in (KEPT, MARKED)
        if reason and (held.running > MAX_DROPPED or strong):
            self._doubtful.append((held, reason))
        elif reason:
            self._drop(held, reason)
        if verdict.level >= 0 and (not reason or strong):
            self.candidates.append(Candidate(verdict.level, held.start, held.end, tag, element.get("class") or ""))

    def _reason(self, tag: str, verdict: Verdict, held: Contents) -> int:
        """Reason to drop a container."""
        if verdict.comments and self.page != FORUM:
            return COMMENT
        if verdict.hidden:
            return HIDDEN
        if verdict.marked:
            return MARKED
        if verdict.toc:
            return TOC
        weighed = tag in WEIGHED if self.page == ARTICLE else tag == "header" or (tag in LISTS and self.page == FORUM)
        if weighed and _is_mostly_links(tag, held):
            return LINKS
        if tag == "form" and held.size < MAX_FORM:
            return MARKED
        inside = self.blocks[held.start : held.end] if tag == "figure" and held.running <= MAX_DROPPED else ()
        return MARKED if inside and not any(one.kind in ("pre", "td") for one in inside) else KEPT

    def _add(self, block: Block) -> None:
        self.blocks.append(block)
        self.size += block.size
        self.links += block.links
        self.running += block.running

    def _drop(self, held: Contents, reason: int) -> None:
        for block in self.blocks[held.start : held.end]:
            if not block.dropped:
                block.dropped = reason
                self.size -= block.size
                self.links -= block.links
                self.running -= block.running


def page_blocks(tree: HtmlElement, rules: AttributeRules, page: str, tables: bool = True) -> Walk:
    """Read the blocks and the candidates of a page; `page` is its type."""
    walk = Walk(rules, page, tables)
    body = tree.find("body") if tree.tag == "html" else tree
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + MAX_FRAMES)
    try:
        walk.read(tree if body is None else body, "")
    finally:
        sys.setrecursionlimit(limit)
    walk.flush("")
    walk.settle()
    return walk


def _is_short(element: HtmlElement, limit: int) -> bool:
    """Return True if an element has at most `limit` characters."""
    for text in element.itertext():
        limit -= len(text)
        if limit < 0:
            return False
    return True


def _kind(tag: str, outer: str) -> str:
    """Kind of the blocks in an element, of which `outer` is the one around it."""
    if tag in ("li", "dd", "dt"):
        return "li"
    if tag in HEADINGS:
        return "h"
    if tag in ("p", "blockquote"):
        return outer if outer in ("li", "td") else "p"
    return "td" if tag in CELLS else outer


def _is_mostly_links(tag: str, held: Contents) -> bool:
    size, links = held.size, held.links
    if held.end - held.start == 1 and tag == "p":
        return links > 0.8 * size and size < 200
    return links > 0.6 * size and (size < 2000 or links > 0.8 * size)
