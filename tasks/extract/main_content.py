"""Main text of a page by its structure: the blocks of the container that holds most of the running text.

The page is read once (`blocks`); its type (`page_type`) decides which classes mark boilerplate (`attribute_rules`) and
how the container is chosen. Lists keep their markers, tables a row a line, code its lines and indentation.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from lxml.etree import ElementDefaultClassLookup, ParserError, XMLSyntaxError, XPath
from lxml.html import HtmlElement, HTMLParser, document_fromstring
from selectolax.lexbor import LexborHTMLParser

from tasks.extract.article_lines import drop_lines, holds_title, is_date, is_title, page_titles
from tasks.extract.attribute_rules import AttributeRules
from tasks.extract.blocks import (
    ENDING,
    FIGURE,
    HIDDEN,
    KEPT,
    LINKS,
    MARKED,
    MIN_RUNNING,
    REPEATED,
    SENTENCE_END,
    TAG,
    TOC,
    Block,
    is_linked,
    is_prose,
    letters,
)
from tasks.extract.candidates import Candidate
from tasks.extract.edge_lines import drop_edges
from tasks.extract.forum_lines import SIGNATURE, drop_post_lines, without_signature
from tasks.extract.json_ld import article_body
from tasks.extract.page_type import ARTICLE, DOCUMENTATION, FORUM, page_type, states_article
from tasks.extract.settle import settle, weigh_again
from tasks.extract.walk import Walk, page_blocks

# A tree has up to 2,048 levels. By default it has 256, and the text below them is lost where many tags are not closed
# (a page of gnuplot's manual has 754).
PARSER = HTMLParser(collect_ids=False, encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
PARSER.set_element_class_lookup(ElementDefaultClassLookup(element=HtmlElement))  # lxml.html's is a function in Python
CONTROLS = bytes(code for code in range(32) if chr(code) not in "\t\n\f\r")  # libxml2 ends a text at some of them

IGNORED = "Opening and ending tag mismatch"  # libxml2's message for an end tag that it ignores

# After these ends libxml2 reads nothing, and a browser reads on: a page may be put together of several. The slash of
# `<body/>` is an end only in XML.
ENDS = re.compile(rb"<(?:/(?:body|html)\s*>|(?P<start>(?:html|head|body)(?:\s[^<>]*)?)/>)", re.IGNORECASE)

RULES = {page: AttributeRules(page) for page in (ARTICLE, DOCUMENTATION, FORUM)}
LOOSE = RULES | {ARTICLE: AttributeRules(ARTICLE, loose=True)}
# The numbers below were chosen on the gold pages; benchmarks/extract.py shows them by quarters.
STREAMED = XPath("//div[@hidden][contains(@id, 'S:')]")
OUTSIDE, HEADER, BESIDE_PAGES = "outside", "header", "beside"
LEVELS = 5  # of candidates, see `attribute_rules.LEVELS`
CONTENT_LEVEL, MAIN_LEVEL = 3, 4  # of containers that a page without an article has too
MIN_TEXT = 250  # characters of running text of a main content
MIN_SHARE = 0.4  # of the page's running text in it
MIN_OF_ARTICLE = 0.7  # of the running text of an `article`, in a container of a strong name inside it
MIN_COMMENTED = 2  # running text of an article above its comments, relative to what follows their container
MIN_PART = 0.2  # running text of a further part of it, relative to the largest part
MIN_PARTS = 0.5  # of the running text from the first part to the last, in all parts
MIN_LISTS = 3  # of links, of which a text consists
MOST = 0.9  # share of the text in the main content of documentation, forums, and pages that state no article
MIN_POSTS = 0.5  # share of the running text in the posts of a forum
LEAD_BLOCKS = 6  # blocks before the main content that may introduce it
MAX_TEASER = 5  # blocks of an announcement of another page
MIN_REPEATED = 20  # characters of a summary
QUOTES = "\"“”„«»‹›'‘’ "  # around a pull quote
BESIDE = re.compile(r"(?:Next|Prev(?:ious)?|Up): .{1,200}\bUp: |(?:Next|Up): .{1,200}\[Contents\]")
MAX_ENDING, MAX_ENDINGS = 100, 3  # characters of a last heading without a text; number of them
MIN_COPIED = 0.3  # of the running text, in a passage that was said before
MIN_COPY, MAX_HEAD = 1000, 60  # letters of a passage that was said before; characters by which one is looked for
BETWEEN_SENTENCES = re.compile(r"(?<=[.!?…。！？])\s+")
MAX_PULL_QUOTES = 50  # asides that are looked up in the text, each in all of it
SHORT_PAGE = 1500  # characters of running text of a page whose captions, or whose footer, may be the text
MAX_FRAGMENT, MOST_OF_ARTICLE = 4000, 0.7  # characters of running text of a fragment, or share of an article in it
# A day in the order of its sizes, and the size of a line with it, the source and the hour.
DAY, MAX_DATED = re.compile(r"(?:19|20)\d\d ?[-/.年] ?[01]?\d ?[-/.月] ?[0-3]?\d(?!\d)"), 150
HEADED = frozenset(["p", "pre", "h"])  # kinds of a block right below a heading of it
MIN_HEADINGS = 3  # that are links, each above a text
CELLS = " | "  # between those of a row
MORE, MANY_LINKS = 1.1, 2  # running text or links of it, relative to the running text of the fragment
GAIN = 1.75  # least length of the text of a page without an article, relative to the fragment
MIN_LEAD = 150  # characters of an introduction; shorter ones are standfirsts


def parse(html: str | bytes) -> HtmlElement | None:
    """Parse a page, a string or UTF-8; None if there is nothing in it.

    libxml2 ignores an end tag after a `div` that is not closed, and reads the rest of the page as the content of a
    button, or of a navigation. Such pages, 6 % of all, are read as browsers read them.

    Raises:
        MemoryError: the page needs more memory than there is.
    """
    encoded = html if isinstance(html, bytes) else html.encode("utf-8", "replace")
    if b"<xmp" not in encoded:  # where they may be text
        encoded = ENDS.sub(lambda end: b"<%b>" % end["start"] if end["start"] else b"", encoded)
    encoded = encoded.translate(None, CONTROLS)
    try:
        tree = document_fromstring(encoded, parser=PARSER)
        if any(one.message.startswith(IGNORED) for one in PARSER.error_log):
            tree = document_fromstring((LexborHTMLParser(encoded).html or "").encode(), parser=PARSER)
        return tree
    except ParserError:
        return None
    except XMLSyntaxError:  # this parser repairs all markup, and fails where it cannot allocate
        raise MemoryError("libxml2 cannot build the tree") from None  # lxml's error cannot be pickled


def structured_text(tree: HtmlElement, tables: bool = True) -> str:
    """Main text of a page, a block a line; "" if it has none.

    The markup of some pages is empty until a script has run. Then the text that they state in JSON-LD is taken, or that
    of `noscript` elements and declarative shadow roots.
    """
    return find_text(tree, tables)[0]


def find_text(tree: HtmlElement, tables: bool = True, account: bool = False) -> tuple[str, Walk | None]:
    """Main text of a page, and the walk that found it; None if it is stated in JSON-LD."""
    _place_streamed(tree)
    walk = decide(tree, tables, account)
    text = _text(walk)
    # A second copy counts: a page is not read again, with its cards and lists, since it holds its text twice.
    size = sum(one.size for one in walk.blocks if one.dropped in (KEPT, REPEATED))
    if size < MIN_TEXT:
        least = max(MIN_TEXT, 2 * size)
        if letters(stated := article_body(tree, parse)) > least:
            return stated, None
        if _show_unscripted(tree) and _size((found := decide(tree, tables, account)).blocks) > least:
            return _text(found), found
    running = sum(one.running for one in walk.blocks if one.dropped in (KEPT, REPEATED))
    if walk.page == ARTICLE and (size < MIN_TEXT or (_is_fragment(walk, running) and not states_article(tree))):
        found = decide(tree, tables, account, LOOSE)
        if _size(found.blocks) > max(MIN_TEXT, GAIN * size) and _says_more(found.blocks, running):
            return _text(found), found
    return text, walk


def _is_dated(walk: Walk) -> bool:
    """Return True for a day between a heading and the text below it: they are an article, whatever is around them."""
    first = next((number for number, one in enumerate(walk.blocks) if not one.dropped and is_prose([one])), 0)
    near = walk.blocks[max(first - LEAD_BLOCKS, 0) : first]
    heading = next((number for number, one in enumerate(near) if one.kind == "h"), len(near))
    return any(one.kind != "h" and one.size <= MAX_DATED and DAY.search(one.text) for one in near[heading:])


def _is_fragment(walk: Walk, running: int) -> bool:
    """Return True if the main content of a page is short, and a weak container, or not most of the text and rows.

    Or it is less than the sentences that are links: those of a catalogue, about what they lead to.
    """
    outside = sum(
        max(one.running, (CELLS in one.text and 2 * one.links < one.size) * one.size)
        for one in walk.blocks
        if one.dropped == OUTSIDE
    )
    linked = sum(one.size for one in walk.blocks if one.dropped == LINKS and SENTENCE_END.search(one.text))
    is_part = walk.level >= CONTENT_LEVEL or running < MOST_OF_ARTICLE * (running + outside) or running < linked
    return running < MAX_FRAGMENT and is_part and not _is_dated(walk)


def _says_more(blocks: Sequence[Block], running: int) -> bool:
    """Return True for more running text than a fragment has, or so many links that they are the page."""
    links = sum(one.links for one in blocks if not one.dropped)
    return _running(blocks) > MORE * running or links > MANY_LINKS * running


def _place_streamed(tree: HtmlElement) -> None:
    """Move the parts of a page that React sends late, `<div hidden id="S:1">`, to their places: `B:1` or `P:1`."""
    places = {one.get("id"): one for one in tree.iter("template")}
    for part in STREAMED(tree) if places else ():
        prefix, _, number = part.get("id").rpartition("S:")
        place = places.get(f"{prefix}B:{number}", places.get(f"{prefix}P:{number}"))
        if place is not None and part not in place.iterancestors() and not (part.tail or "").strip():
            del part.attrib["hidden"]
            place.addprevious(part)


def _show_unscripted(tree: HtmlElement) -> bool:
    """Make elements of the content that is not shown where scripts run; returns False if there is none."""
    found = [
        element
        for element in tree.iter("frameset", "noframes", "noscript", "template")
        if element.tag != "template" or "shadowrootmode" in element.attrib or "shadowroot" in element.attrib
    ]
    for element in found:
        if element.tag == "noframes" and (inner := parse(element.text or "")) is not None:  # libxml2 leaves its source
            element.text = None
            element.append(inner)
        element.tag = "div"
    return bool(found)


def decide(tree: HtmlElement, tables: bool, account: bool = False, rules: Mapping[str, AttributeRules] = RULES) -> Walk:
    """Read the blocks of a page, and drop those that are no text of it, each for a reason."""
    metas = list(tree.iter("meta"))
    kind = page_type(tree, metas)
    titles = page_titles(tree, metas)
    walk = page_blocks(tree, rules[kind], kind, tables, account)
    settle(walk, titles)
    _readmit_parts(walk.blocks)
    if walk.dialog:
        start, end = walk.dialog
        _drop([*walk.blocks[:start], *walk.blocks[end:]], OUTSIDE)
    if sum(one.size for one in walk.blocks) < MIN_TEXT:  # nothing to weigh its links against
        for one in walk.blocks:
            one.dropped = KEPT if one.dropped == LINKS else one.dropped
    if kind == ARTICLE:
        _drop_next_articles(walk, titles)
        start, end = _main_container(walk) if walk.rules.loose else _best_container(walk, tree, titles)
        end = _end_of_commented(walk, start, end)
        lead = _lead(walk.blocks[:start]) + [one for held in walk.recipes for one in walk.blocks[held.start : held.end]]
        taken = _readmit(walk.blocks[start:end], (MARKED,), (MARKED, HIDDEN))
        weigh_again(walk, [start + number for number in taken])
        _readmit_sources(walk, start, end)
        _readmit_lists(walk, tree, walk.blocks[start:end])
        _readmit_headings(walk, start, end)
        drop_lines(walk.blocks[start:end], titles, are_links=walk.rules.loose)
        _drop_pull_quotes(walk)
    else:
        start, end = _smallest_container(walk)
        lead = _title(walk.blocks[:start])
        _readmit_headings(walk, start, end)
        _readmit_contents(walk.blocks[start:end])
        if kind == FORUM and (posts := _posts(walk)):
            lead = _subject(walk.blocks, posts, titles)
            _drop(walk.blocks, OUTSIDE, [*lead, *posts])
            drop_post_lines(posts, are_posts=True)
        elif kind == FORUM:
            _drop_header(walk, start, end)
            drop_post_lines(_live(walk.blocks[start:end]), are_posts=False)
        else:
            _drop_repeats(_live(walk.blocks[start:end]))
            _drop_header(walk, start, end)
    _drop([*walk.blocks[:start], *walk.blocks[end:]], OUTSIDE, lead)
    if kind == ARTICLE:
        _drop_copies(_live(walk.blocks))
    drop_edges(_live(walk.blocks), paragraphs=kind == ARTICLE)
    _drop_ending(_live(walk.blocks))
    return walk


def _drop_ending(blocks: Sequence[Block]) -> None:
    """Drop short headings at the end that have no text; more than a few that are items of a list are its text."""
    last = list(itertools.takewhile(lambda one: one.kind == "h" and one.size <= MAX_ENDING, reversed(blocks)))
    if len(last) < len(blocks) and not (len(last) > MAX_ENDINGS and all(one.text[:2] == "- " for one in last)):
        _drop(last, ENDING)


def _text(walk: Walk) -> str:
    return "\n".join(one.text for one in walk.blocks if not one.dropped)


def _running(blocks: Sequence[Block]) -> int:
    """Characters of running text of blocks that are not dropped."""
    return sum(one.running for one in blocks if not one.dropped)


def _size(blocks: Sequence[Block]) -> int:
    """Characters of blocks that are not dropped."""
    return sum(one.size for one in blocks if not one.dropped)


def _main_container(walk: Walk) -> tuple[int, int]:
    """First and last block of the main part of a page without an article, as the page names it, or of most of it."""
    found = [one for one in walk.candidates.found if one.level == MAIN_LEVEL]
    best = max(found, key=lambda one: _size(walk.blocks[one.start : one.end]), default=None)
    if best and _size(walk.blocks[best.start : best.end]) > MIN_SHARE * _size(walk.blocks):
        return best.start, best.end
    return _smallest_container(walk)


def _best_container(walk: Walk, tree: HtmlElement, titles: Sequence[str]) -> tuple[int, int]:
    """First and last block of an article's main content: the strongest kind of container that holds enough text."""
    running = beside_teasers = _running(walk.blocks)
    weighed: list[tuple[int, Candidate]] = []
    for one in walk.candidates.found:
        blocks = walk.blocks[one.start : one.end]
        if _is_teaser(blocks, titles):
            beside_teasers -= _running(blocks)
        else:
            weighed.append((_running(blocks), one))
    for level in range(LEVELS):
        found = [pair for pair in weighed if pair[1].level == level]
        if not found:
            continue
        size, best = max(found, key=lambda pair: pair[0])
        # A text may be divided into several containers of one kind, which hold most of what is between them.
        parts = [
            (own, one)
            for own, one in found
            if own >= MIN_PART * size and (level == 0 or (one.tag, one.name) == (best.tag, best.name))
        ]
        alike = [one for _, one in parts]
        start, end = min(one.start for one in alike), max(one.end for one in alike)
        joint = _running(walk.blocks[start:end])
        if len(alike) == 1 or joint <= 1.1 * size or sum(own for own, _ in parts) < MIN_PARTS * joint:
            start, end, joint = best.start, best.end, size
        else:
            start -= _heading_blocks(walk.blocks, alike)
        if level == 0 and joint < MIN_OF_ARTICLE * _article_around(walk, start, end):
            continue
        if level >= CONTENT_LEVEL and best.tag != "main" and joint < MOST * beside_teasers and not states_article(tree):
            continue  # what a page presents stands in several containers
        if joint >= MIN_TEXT and joint >= (MIN_SHARE if level else MIN_SHARE / 2) * running:
            walk.level = level
            return _with_next_parts(walk, best, start, end)
    return _unnamed_container(walk) if running >= MIN_TEXT else (0, len(walk.blocks))


def _drop_next_articles(walk: Walk, titles: Sequence[str]) -> None:
    """Drop the articles after the one of the page's title, each with a heading and a date: pages that are scrolled."""
    articles: defaultdict[str, list[Candidate]] = defaultdict(list)
    for one in walk.candidates.found:
        if one.tag == "article":
            articles[one.name].append(one)
    for alike in articles.values():
        alike.sort(key=lambda one: one.start)
        if any(one.end > after.start for one, after in itertools.pairwise(alike)):
            continue  # one in the other
        own = [one for one in alike if holds_title(walk.blocks[one.start : one.end], titles)]
        if len(own) == 1 and _running(walk.blocks[own[0].start : own[0].end]) >= MIN_TEXT:
            for one in alike:
                blocks = walk.blocks[one.start : one.end]
                if one.start >= own[0].end and any(block.kind == "h" for block in blocks) and any(map(is_date, blocks)):
                    _drop(blocks, OUTSIDE)


def _end_of_commented(walk: Walk, start: int, end: int) -> int:
    """Last block of an article that has comments: what stands outside of its container and theirs is of the site."""
    if not start < walk.commented < end:
        return end
    before, after = _running(walk.blocks[start : walk.commented]), _running(walk.blocks[walk.commented : end])
    return walk.commented if before >= MIN_COMMENTED * after else end


def _unnamed_container(walk: Walk) -> tuple[int, int]:
    """First and last block of the smallest container of any name that holds all sentences, code and tables.

    Nearly all other text without links is in it too, which headings of lists beside it are not.
    """
    found = [number for number, one in enumerate(walk.blocks) if not one.dropped and _is_surely_text(one)] or [0]
    sizes = (0 if one.dropped or one.links or one.kind == "h" else one.size for one in walk.blocks)
    before = list(itertools.accumulate(sizes, initial=0))  # a page may have 2,000 containers in each other
    fitting = [
        one
        for one in walk.boxes
        if one.start <= found[0] and found[-1] < one.end and before[one.end] - before[one.start] >= MOST * before[-1]
    ]
    best = min(fitting, key=lambda one: one.end - one.start, default=None)
    return (best.start, best.end) if best else (0, len(walk.blocks))


def _is_surely_text(block: Block) -> bool:
    """Return True for prose, or without a link a short sentence, code, or a row of a table."""
    is_short = block.running > 0 and SENTENCE_END.search(block.text) is not None
    return is_prose([block]) or (not block.links and (is_short or block.kind == "pre" or CELLS in block.text))


def _article_around(walk: Walk, start: int, end: int) -> int:
    """Characters of running text of the smallest `article` around some blocks; 0 if there is none."""
    around = [one for one in walk.candidates.found if one.tag == "article" and one.start <= start and end <= one.end]
    smallest = min(around, key=lambda one: one.end - one.start, default=None)
    return _running(walk.blocks[smallest.start : smallest.end]) if smallest else 0


def _heading_blocks(blocks: Sequence[Block], parts: Sequence[Candidate]) -> int:
    """Number of blocks before the first part of a text, if as many of the same kinds are before each part."""
    parts = sorted(parts, key=lambda one: one.start)
    count = min(after.start - before.end for before, after in itertools.pairwise(parts))
    kinds = {tuple(block.kind for block in blocks[max(one.start - count, 0) : one.start]) for one in parts}
    return count if 0 < count <= LEAD_BLOCKS and len(kinds) == 1 else 0


def _with_next_parts(walk: Walk, best: Candidate, start: int, end: int) -> tuple[int, int]:
    """First and last block of a main content with the parts after it: containers of its class that begin with prose."""
    alike = [one for one in walk.candidates.found if best.name and (one.tag, one.name) == (best.tag, best.name)]
    for one in sorted(alike, key=lambda one: (one.start, -one.end)):
        if one.start >= end:
            part = _live(walk.blocks[one.start : one.end])
            if _running(walk.blocks[end : one.start]) > MIN_RUNNING or not is_prose(part[:1]) or is_linked(part):
                break
            end = one.end
    return start, end


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
    fitting = [one for one in walk.candidates.found if weight(walk.blocks[one.start : one.end]) >= least]
    best = min(fitting, key=lambda one: one.end - one.start, default=None)
    return (best.start, best.end) if best else (0, len(walk.blocks))


def _lead(before: Sequence[Block]) -> list[Block]:
    """Introduction of an article, which is often outside the container of its body, with the text up to that."""
    near = [one for one in before[-LEAD_BLOCKS:] if not one.dropped]
    found = [
        one
        for one in near
        if one.size >= MIN_LEAD and not one.links and (one.kind in "ph" or (one.kind == "li" and is_prose([one])))
    ]
    first = near.index(found[0]) if found else len(near)
    return [one for one in near[first:] if one in found or (one.kind in ("p", "li") and is_prose([one]))]


def _posts(walk: Walk) -> list[Block]:
    """Blocks of the posts of a forum; none if its template does not name them, or they hold little of the text."""
    ends: list[tuple[int, int]] = []
    for start, end in walk.posts:  # an inner one comes before the outer one
        if not (ends and start <= ends[-1][0] and ends[-1][1] <= end):
            ends.append((start, end))
    found = [walk.blocks[start:end] for start, end in sorted(ends)]
    posts = [one for post in found for one in without_signature(post) if not one.dropped]
    if _running(posts) < MIN_POSTS * walk.running:
        return []
    for post in found:
        _drop(post[len(without_signature(post)) :], SIGNATURE)
    return posts


def _subject(blocks: Sequence[Block], posts: Sequence[Block], titles: Sequence[str]) -> list[Block]:
    """Heading of a thread, before its posts, and the paragraphs between it and them: a question, or a story."""
    before = _live(blocks[: next(number for number, one in enumerate(blocks) if one is posts[0])])
    headings = [number for number, one in enumerate(before) if one.kind == "h"]
    last = ([number for number in headings if is_title(before[number], titles)] or headings)[-1:]
    return [before[number] for number in last] + [one for one in before[sum(last) :] if last and is_prose([one])]


def _title(before: Sequence[Block]) -> list[Block]:
    """Heading and summary of a page, if they are right before its text."""
    near = [one for one in before if not one.dropped][-LEAD_BLOCKS:]
    first = next((number for number, one in enumerate(near) if one.kind == "h"), len(near))
    return [one for one in near[first:] if one.kind in ("h", "p")]


def _drop_header(walk: Walk, start: int, end: int) -> None:
    """Drop the short lines before the first heading of a page: its path, or its site's name."""
    blocks = _live(walk.blocks)
    if end - start < len(walk.blocks):
        return
    first = next((number for number, one in enumerate(blocks[: LEAD_BLOCKS + 1]) if one.kind == "h"), 0)
    if not any(one.running or one.kind in ("td", "li") for one in blocks[:first]):
        _drop(blocks[:first], HEADER)


def _drop_repeats(blocks: list[Block]) -> None:
    """Drop blocks that the next one begins with, a summary before its text, and lines of links.

    Texinfo names the pages beside a page at its end as it does at its beginning, without a class.
    """
    _drop([one for one in blocks if one.links and BESIDE.match(one.text)], BESIDE_PAGES)
    for one, after in itertools.pairwise(_live(blocks)):
        is_long = one.size >= MIN_REPEATED and one.kind not in ("h", "pre", "td", "li")
        if is_long and after.text.startswith(one.text) and not after.text[len(one.text) :][:1].isalnum():
            one.dropped = REPEATED


def _readmit_parts(blocks: Sequence[Block]) -> None:
    """Take back captions, navigations and footers of a page that has hardly another text, marked or not."""
    running = Counter[str]()
    for one in blocks:
        running[one.dropped] += one.running
    if running[KEPT] < SHORT_PAGE and running[TAG] > running[MARKED]:
        _readmit(blocks, (FIGURE, TAG))


def _drop_pull_quotes(walk: Walk) -> None:
    """Drop the asides that say again what a paragraph outside of them says."""
    asides = walk.asides[:MAX_PULL_QUOTES]
    inside = {number for held in asides for number in range(held.start, held.end)}
    rest = [one.text for number, one in enumerate(walk.blocks) if asides and not one.dropped and number not in inside]
    whole = "\n".join(rest)
    for held in asides:
        said = [one.text.strip(QUOTES) for one in _live(walk.blocks[held.start : held.end])]
        if all(one in whole for one in said):
            _drop(walk.blocks[held.start : held.end], REPEATED)


def _drop_copies(blocks: Sequence[Block]) -> None:
    """Drop the passages whose sentences were all said before: the text for another screen, or a transcript of it.

    What alternatives have in common, as packages and offers do, is in lists and tables, or below headings of their own,
    as the descriptions of two functions are.
    """
    heads = [one.text[:MAX_HEAD] for one in blocks if one.size >= MAX_HEAD and _is_prose_block(one)]
    if len(set(heads)) == len(heads):
        return
    least = min(MIN_COPY, max(MIN_TEXT, MIN_COPIED * _running(blocks)))
    named = Counter(one.text for one in blocks if one.kind == "h")
    own = [*itertools.accumulate(one.kind == "h" and named[one.text] == 1 for one in blocks)]
    said: dict[str, int] = {}  # headings that stand once, up to each sentence
    for is_copy, passage in itertools.groupby(
        zip(blocks, own, strict=True), lambda one: _is_said(one[0], one[1], said)
    ):
        copied, headings = zip(*passage, strict=True)
        prose = [one.text for one in copied if is_copy and _is_prose_block(one)]
        sentences = BETWEEN_SENTENCES.split(" ".join(prose))
        size = sum(map(letters, set(sentences)))
        if size >= least and said[BETWEEN_SENTENCES.split(prose[0])[0]] == headings[0]:
            _drop(copied, REPEATED)


def _is_prose_block(block: Block) -> bool:
    return block.running > 0 and block.kind not in ("td", "pre") and block.text[:2] != "- "


def _is_said(block: Block, headings: int, said: dict[str, int]) -> bool:
    """Return True for a block whose sentences were said before; note the others with a number of headings."""
    sentences = BETWEEN_SENTENCES.split(block.text)
    is_said = all(one in said for one in sentences)
    for one in sentences:
        said.setdefault(one, headings)
    return is_said


def _readmit(blocks: Sequence[Block], *choices: Sequence[str]) -> list[int]:
    """Take back the blocks that were dropped for a reason, if they hold most of the text; returns their places."""
    running = _running(blocks)
    for reasons in choices:
        found = [one for one in blocks if one.dropped == reasons[-1]]
        if reasons[-1] == HIDDEN and running >= MIN_TEXT:  # words for search engines have no sentences
            found = [one for one in found if SENTENCE_END.search(one.text)]
        if sum(one.running for one in found) > 2 * running:
            taken = [number for number, one in enumerate(blocks) if one.dropped in reasons]
            for number in taken:
                blocks[number].dropped = KEPT
            return taken
    return []


def _readmit_sources(walk: Walk, start: int, end: int) -> None:
    """Take back the lists of links to other sites that stand in a text: sources, and what it is about."""
    prose = [number for number in range(start, end) if walk.blocks[number].running and not walk.blocks[number].dropped]
    for held in walk.sources:
        if prose and prose[0] < held.start and held.end <= prose[-1]:
            walk.keep(held, LINKS)


def _readmit_lists(walk: Walk, tree: HtmlElement, blocks: Sequence[Block]) -> None:
    """Take back the lists of links of which a stated article consists, each below a line of it.

    A page that states none is read again with all its links.
    """
    links = sum(one.size for one in blocks if one.dropped == LINKS and one.kind == "li")
    if walk.level >= CONTENT_LEVEL or links <= MANY_LINKS * _size(blocks):
        return
    heads = sum(
        not (before.dropped or before.links) and one.dropped == LINKS and one.kind == "li"
        for before, one in itertools.pairwise(blocks)
    )
    if heads >= MIN_LISTS and states_article(tree):
        for one in blocks:
            one.dropped = KEPT if one.dropped == LINKS else one.dropped


def _readmit_headings(walk: Walk, start: int, end: int) -> None:
    """Take back the headings right before a text: they are its own, whatever their class says.

    One or two that are links may be those of other pages.
    """
    for held in reversed(walk.headings):
        own, after = walk.blocks[held.start : held.end], walk.blocks[held.end : end][:1]
        is_above_text = any(not one.dropped and (one.kind in HEADED or is_prose([one])) for one in after)
        if held.start >= start and is_above_text and 2 * sum(one.links for one in own) < sum(one.size for one in own):
            walk.keep(held, MARKED)
    marked = {held.start for held in walk.headings}
    linked = [
        one
        for number, (one, after) in enumerate(itertools.pairwise(walk.blocks[start:end]), start)
        if one.kind == "h" and (one.dropped in (KEPT, LINKS) or number in marked)
        if 2 * one.links >= one.size and not after.dropped and is_prose([after])
    ]
    for one in linked if len(linked) >= MIN_HEADINGS else ():
        one.dropped = KEPT


def _readmit_contents(blocks: Sequence[Block]) -> None:
    """Take back the table of contents of a page that is mostly one."""
    if sum(one.size for one in blocks if one.dropped == TOC) > _size(blocks):
        for one in blocks:
            one.dropped = KEPT if one.dropped == TOC else one.dropped


def _live(blocks: Sequence[Block]) -> list[Block]:
    return [one for one in blocks if not one.dropped]


def _drop(blocks: Sequence[Block], reason: str, kept: Sequence[Block] = ()) -> None:
    """Drop blocks that are not dropped yet, but those of `kept`."""
    spared = set(map(id, kept))
    for one in blocks:
        if not one.dropped and id(one) not in spared:
            one.dropped = reason
