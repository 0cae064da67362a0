"""Main text of a page by its structure: the blocks of the container that holds most of the running text.

The page is read once (`blocks`); its type (`page_type`) decides which classes mark boilerplate (`attribute_rules`) and
how the container is chosen. Lists keep their markers, tables a row a line, code its lines and indentation.
"""

import itertools
import re
from collections.abc import Sequence

from lxml.etree import ElementDefaultClassLookup, ParserError, XMLSyntaxError
from lxml.html import HtmlElement, HTMLParser, document_fromstring

from tasks.extract.article_lines import clean_article, is_title, page_titles
from tasks.extract.attribute_names import BOILERPLATE, FORUM_PARTS, NAVIGATION
from tasks.extract.attribute_rules import AttributeRules
from tasks.extract.blocks import HIDDEN, KEPT, MARKED, TOC, Block
from tasks.extract.forum_lines import clean_posts, without_signature
from tasks.extract.json_ld import article_body
from tasks.extract.page_type import ARTICLE, DOCUMENTATION, FORUM, page_type
from tasks.extract.walk import Walk, page_blocks

# A tree has up to 2,048 levels. By default it has 256, and the text below them is lost where many tags are not closed
# (a page of gnuplot's manual has 754).
PARSER = HTMLParser(collect_ids=False, encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
PARSER.set_element_class_lookup(ElementDefaultClassLookup(element=HtmlElement))  # lxml.html's is a function in Python
CONTROLS = bytes(code for code in range(32) if chr(code) not in "\t\n\f\r")  # libxml2 ends a text at some of them

RULES = {
    ARTICLE: AttributeRules(BOILERPLATE),
    DOCUMENTATION: AttributeRules(NAVIGATION),
    FORUM: AttributeRules(FORUM_PARTS),
}
# The numbers below were chosen on the gold pages; benchmarks/extract_engines.py shows them by quarters.
LEVELS = 5  # of candidates, see `attribute_rules.LEVELS`
MIN_TEXT = 250  # characters of running text of a main content
MIN_SHARE = 0.4  # of the page's running text in it
MIN_PART = 0.2  # running text of a further part of it, relative to the largest part
MOST = 0.9  # share of the running text in the main content of documentation and forums
MIN_POSTS = 0.5  # share of the running text in the posts of a forum
LEAD_BLOCKS = 6  # blocks before the main content that may introduce it
MAX_TEASER = 5  # blocks of an announcement of another page
MIN_REPEATED = 20  # characters of a summary
BESIDE = re.compile(r"(?:Next|Prev(?:ious)?|Up): .{1,200}\bUp: |(?:Next|Up): .{1,200}\[Contents\]")
MIN_LEAD = 150  # characters of an introduction; shorter ones are standfirsts


def parse(html: str | bytes) -> HtmlElement | None:
    """Parse a page, a string or UTF-8; None if there is nothing in it.

    Raises:
        MemoryError: the page needs more memory than there is.
    """
    encoded = html if isinstance(html, bytes) else html.encode("utf-8", "replace")
    try:
        return document_fromstring(encoded.translate(None, CONTROLS), parser=PARSER)
    except ParserError:
        return None
    except XMLSyntaxError:  # this parser repairs all markup, and fails where it cannot allocate
        raise MemoryError("libxml2 cannot build the tree") from None  # lxml's error cannot be pickled


def structured_text(tree: HtmlElement, tables: bool = True) -> str:
    """Main text of a page, a block a line; "" if it has none.

    The markup of some pages is empty until a script has run. Then the text that they state in JSON-LD is taken, or that
    of `noscript` elements and declarative shadow roots.
    """
    text = _text_of_markup(tree, tables)
    if len(text) < MIN_TEXT:
        least = max(MIN_TEXT, 2 * len(text))
        if len(stated := article_body(tree)) > least:
            return stated
        if _show_unscripted(tree) and len(stated := _text_of_markup(tree, tables)) > least:
            return stated
    return text


def _show_unscripted(tree: HtmlElement) -> bool:
    """Make elements of the content that is not shown where scripts run; returns False if there is none."""
    found = [
        element
        for element in tree.iter("noscript", "template")
        if element.tag == "noscript" or "shadowrootmode" in element.attrib or "shadowroot" in element.attrib
    ]
    for element in found:
        element.tag = "div"
    return bool(found)


def _text_of_markup(tree: HtmlElement, tables: bool) -> str:
    kind = page_type(tree)
    walk = page_blocks(tree, RULES[kind], kind, tables)
    if kind == ARTICLE:
        titles = page_titles(tree)
        start, end = _best_container(walk, titles)
        text = clean_article(_article(walk.blocks[start:end]), titles)
        kept = [*_lead(walk.blocks[:start]), *text]
    else:
        start, end = _smallest_container(walk)
        posts = _posts(walk) if kind == FORUM else []
        text = _with_contents(walk.blocks[start:end])
        if kind == DOCUMENTATION:
            text = _without_repeats(text)
        if end - start == len(walk.blocks):
            text = _without_header(text)
        if posts:
            kept = [*_subject(walk.blocks, posts, page_titles(tree)), *clean_posts(posts, are_posts=True)]
        else:
            kept = [*_title(walk.blocks[:start]), *(clean_posts(text, are_posts=False) if kind == FORUM else text)]
    while kept and kept[-1].kind == "h":  # a heading without text
        kept.pop()
    return "\n".join(one.text for one in kept)


def _running(blocks: Sequence[Block]) -> int:
    """Characters of running text of blocks that are not dropped."""
    return sum(one.running for one in blocks if not one.dropped)


def _size(blocks: Sequence[Block]) -> int:
    """Characters of blocks that are not dropped."""
    return sum(one.size for one in blocks if not one.dropped)


def _best_container(walk: Walk, titles: Sequence[str]) -> tuple[int, int]:
    """First and last block of an article's main content: the strongest kind of container that holds enough text."""
    for level in range(LEVELS):
        found = [
            (_running(walk.blocks[one.start : one.end]), one)
            for one in walk.candidates
            if one.level == level and not _is_teaser(walk.blocks[one.start : one.end], titles)
        ]
        if not found:
            continue
        size, best = max(found, key=lambda pair: pair[0])
        # A text may be divided into several containers of one kind.
        alike = [
            one
            for own, one in found
            if own >= MIN_PART * size and (level == 0 or (one.tag, one.name) == (best.tag, best.name))
        ]
        start, end = min(one.start for one in alike), max(one.end for one in alike)
        joint = _running(walk.blocks[start:end])
        if len(alike) == 1 or joint <= 1.1 * size:
            start, end, joint = best.start, best.end, size
        if joint >= MIN_TEXT and joint >= MIN_SHARE * walk.running:
            return start, end
    return 0, len(walk.blocks)


def _is_teaser(blocks: Sequence[Block], titles: Sequence[str]) -> bool:
    """Return True for a short container whose heading is a link to another page."""
    if len(blocks) > MAX_TEASER:
        return False
    first = next((one for one in blocks if one.kind == "h"), None)
    return first is not None and 2 * first.links > first.size and not is_title(first, titles)


def _smallest_container(walk: Walk) -> tuple[int, int]:
    """First and last block of the smallest container that holds nearly all running text, or all text of a list."""
    weight = _running if walk.running >= MIN_TEXT else _size
    least = MOST * weight(walk.blocks)
    fitting = [one for one in walk.candidates if weight(walk.blocks[one.start : one.end]) >= least]
    best = min(fitting, key=lambda one: one.end - one.start, default=None)
    return (best.start, best.end) if best else (0, len(walk.blocks))


def _lead(before: Sequence[Block]) -> list[Block]:
    """Introduction of an article, which is often outside the container of its body."""
    near = before[-LEAD_BLOCKS:]
    return [one for one in near if not one.dropped and one.kind in "ph" and one.size >= MIN_LEAD and not one.links]


def _posts(walk: Walk) -> list[Block]:
    """Blocks of the posts of a forum; none if its template does not name them, or they hold little of the text."""
    ends: list[tuple[int, int]] = []
    for start, end in walk.posts:  # an inner one comes before the outer one
        if not (ends and start <= ends[-1][0] and ends[-1][1] <= end):
            ends.append((start, end))
    found = [one for start, end in sorted(ends) for one in without_signature(walk.blocks[start:end]) if not one.dropped]
    return found if _running(found) >= MIN_POSTS * walk.running else []


def _subject(blocks: Sequence[Block], posts: Sequence[Block], titles: Sequence[str]) -> list[Block]:
    """Heading of a thread, before its posts."""
    before = blocks[: next(number for number, one in enumerate(blocks) if one is posts[0])]
    headings = [one for one in before if one.kind == "h" and not one.dropped]
    return ([one for one in headings if is_title(one, titles)] or headings)[-1:]


def _title(before: Sequence[Block]) -> list[Block]:
    """Heading and summary of a page, if they are right before its text."""
    near = [one for one in before if not one.dropped][-LEAD_BLOCKS:]
    first = next((number for number, one in enumerate(near) if one.kind == "h"), len(near))
    return [one for one in near[first:] if one.kind in ("h", "p")]


def _without_header(blocks: list[Block]) -> list[Block]:
    """Blocks without the short lines before the first heading: the path of a page, or its site's name."""
    first = next((number for number, one in enumerate(blocks[: LEAD_BLOCKS + 1]) if one.kind == "h"), 0)
    return blocks if any(one.running or one.kind in ("td", "li") for one in blocks[:first]) else blocks[first:]


def _without_repeats(blocks: list[Block]) -> list[Block]:
    """Blocks without those that the next one begins with, a summary before its text, and without lines of links.

    Texinfo names the pages beside a page at its end as it does at its beginning, without a class.
    """
    kept = [one for one in blocks if not (one.links and BESIDE.match(one.text))]
    repeated = {
        number
        for number, (one, after) in enumerate(itertools.pairwise(kept))
        if one.size >= MIN_REPEATED and one.kind not in ("h", "pre", "td") and after.text.startswith(one.text)
    }
    return [one for number, one in enumerate(kept) if number not in repeated]


def _article(blocks: Sequence[Block]) -> list[Block]:
    """Blocks of an article that are not dropped; also the marked ones if they hold most of the text."""
    kept = [one for one in blocks if not one.dropped]
    for reasons in ((MARKED,), (MARKED, HIDDEN)):
        if sum(one.running for one in blocks if one.dropped == reasons[-1]) > 2 * sum(one.running for one in kept):
            kept = [one for one in blocks if one.dropped in (KEPT, *reasons)]
            break
    return kept


def _with_contents(blocks: Sequence[Block]) -> list[Block]:
    """Blocks that are not dropped; of a page that is mostly a table of contents, also this."""
    kept = [one for one in blocks if not one.dropped]
    if sum(one.size for one in blocks if one.dropped == TOC) > sum(one.size for one in kept):
        kept = [one for one in blocks if one.dropped in (KEPT, TOC)]
    return kept
