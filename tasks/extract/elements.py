"""Properties of elements that the walk over a page asks for."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from lxml.etree import XPath, iterwalk
from lxml.html import HtmlElement

from tasks.core.url_lists import host_of
from tasks.extract.attribute_names import HIDDEN, TOGGLE
from tasks.extract.blocks import BLOCK_TAGS, HEADINGS, MAX_LINKED, MIN_RUNNING, SENTENCE_END, Block, Contents, letters

CELLS = frozenset(("td", "th"))
QUESTIONS = HEADINGS | {"summary", "dt"}  # their controls are text: the questions of an accordion
PICTURES = frozenset(["audio", "embed", "iframe", "object", "picture", "video"])
MAX_OUTER = 3  # elements between a question and its button
SERIES = re.compile(r"([^\W\d_]+?)(?:[-_:.\d]|[A-Z])")  # first word of an id of several
WORD = re.compile("[a-z0-9]+")
COUNTER = re.compile(r"[\W_]+\d{1,2}$")  # at the end of an id whose words another one has too
MIN_WORDS, MAX_SPACED = 3, 4  # words of an id that is a slug; characters of the text for each character of it
UNSHOWN = frozenset(("script", "style", "template", "noscript"))
QUESTION_MARKS = ("?", "？", "؟")
QUOTES = ('"', "'", "“", "„", "”", "‘", "‚", "’", "«", "»", "‹", "›", "「", "『")
MAX_QUESTION_LINE = 300  # characters of a question above its answer
CONTROL_SIGNS = frozenset(["aria-expanded", "aria-controls"])
MAX_LINK = 2000  # characters of a link, with a teaser in it
MIN_PAGE = 400  # characters of a navigation or a footer that may hold the text of the page
MIN_LINES = 3  # of code in an area that is for reading; shorter texts are there to be copied
# Texts of an element that a browser shows or could show; within `UNSHOWN` elements, which may hold others, none.
SHOWN = XPath("descendant-or-self::text()[not(parent::script or parent::style)]", smart_strings=False)
HOLDS_UNSHOWN = XPath("boolean(descendant-or-self::template | descendant-or-self::noscript)")
IS_UNSHOWN = XPath("boolean(ancestor::script | ancestor::style | ancestor::template | ancestor::noscript)")
HOLDS_LINES = XPath("boolean((.//pre or .//table) and not(.//img or .//picture))")
FOREIGN = XPath("descendant::foreignobject[not(ancestor::foreignobject)]")  # HTML in a drawing, once
NO_PROSE = ("article", "button", "iframe", "img", "input", "picture", "select", "textarea", "video")
HREFS = XPath("descendant::a/@href", smart_strings=False)
LINES = XPath("descendant::a[descendant::br[following-sibling::node()[1][self::text()][normalize-space()]][2]]")
FIFTH_LINE = "br[4]"  # of verses, by the breaks between their links
MIN_ELSEWHERE, MAX_LINKS = 0.2, 100  # share of the links of a list of sources, among the first ones

NO_FIELDS = frozenset(["hidden", "submit", "button", "image", "reset", "search"])
CHOICES = frozenset(["checkbox", "radio"])
PERSONAL = frozenset(["email", "password", "tel"])
MIN_ANSWERS, SHARE_OF_ANSWERS = 3, 0.4  # fields to fill in; share of them: .3 in a questionnaire, .43 in sign-ups
MAX_QUESTION = 250  # characters of a form for each of its fields


def described(element: HtmlElement) -> str:
    """Tag, id and class of an element, as in a selector."""
    classes = "".join(f".{name}" for name in (element.get("class") or "").split())
    return f"{element.tag}{'#' + element.get('id') if element.get('id') else ''}{classes}"


def shown_text(element: HtmlElement) -> str:
    """Text of an element that a browser shows or could show, in a line.

    A search for the ancestors of each text would take 20 s for a page of 700 nested elements.
    """
    if IS_UNSHOWN(element):
        return ""
    if not HOLDS_UNSHOWN(element):
        return " ".join(SHOWN(element))
    texts: list[str | None] = []
    walk = iterwalk(element, events=("start", "end", "comment", "pi"))
    for event, inner in walk:
        if event != "start":
            texts.append(None if inner is element else inner.tail)
        elif inner.tag in UNSHOWN:
            walk.skip_subtree()
        else:
            texts.append(inner.text)
    return " ".join(filter(None, texts))


def stated_title(tree: HtmlElement) -> str | None:
    """Text of the first `title` of a page; None if it has none."""
    # `iter("title")` would look for the next one too, through the whole page.
    return next((element.text or "" for element in tree.iter() if element.tag == "title"), None)


def holds_block(element: HtmlElement, line_breaks: bool = False) -> bool:
    """Return True if an inline element has a block in it, or a line break if those count."""
    # `iter` with fifty tags takes ten times as long for the few elements inside.
    found = (inner for inner in element.iter() if inner.tag in BLOCK_TAGS or (line_breaks and inner.tag == "br"))
    return any(not IS_UNSHOWN(inner) for inner in found)


def holds_input(element: HtmlElement) -> bool:
    """Return True if a reader can enter something in an element."""
    return any(one.get("type") != "hidden" for one in element.iter("input", "button", "select", "textarea"))


def asks_for_person(form: HtmlElement, size: int) -> bool:
    """Return True for a form of `size` characters that asks for a name and an address, without a title of a page."""
    types = [(one.get("type") or "").lower() for one in form.iter("input", "select", "textarea")]
    fields = [one for one in types if one not in NO_FIELDS]
    answers = sum(one not in CHOICES for one in fields)
    if answers < max(MIN_ANSWERS, SHARE_OF_ANSWERS * len(fields)) or PERSONAL.isdisjoint(fields):
        return False
    return size <= MAX_QUESTION * len(fields) and form.find(".//h1") is None


def is_picture(figure: HtmlElement, held: Contents) -> bool:
    """Return True for a figure with a picture, a film, or words alone; others are quotations, notes, and tables.

    Medium has whole articles in one.
    """
    has_quote = next(figure.iter("td", "blockquote"), None) is not None
    if has_quote or (figure.find(".//figure") is not None and len(figure.findall(".//p")) > 1):
        return False
    return not held.running or next(figure.iter("img", "svg", "canvas", *PICTURES), None) is not None


def is_of_series(element: HtmlElement) -> bool:
    """Return True if an element beside it has the same first class, and an id that begins with the same word."""
    if (word := SERIES.match(element.get("id") or "")) is None or not (name := element.get("class")):
        return False
    kind = name.partition(" ")[0]
    return any(
        other is not None
        and (other.get("class") or "").partition(" ")[0] == kind
        and (found := SERIES.match(other.get("id") or "")) is not None
        and found[1] == word[1]
        for other in (element.getprevious(), element.getnext())
    )


def is_slug(element: HtmlElement) -> bool:
    """Return True if the id of an element is made of its first words, as that of a section is of its heading."""
    name = COUNTER.sub("", (element.get("id") or "").lower())
    words = WORD.findall(name)
    if len(words) < MIN_WORDS or not name.isascii():
        return False
    text = shown_text(element)[: MAX_SPACED * len(name)].lower()
    return "".join(WORD.findall(text)).startswith("".join(words))


def is_caption_of_lines(caption: HtmlElement) -> bool:
    """Return True for the caption of code or of a table: it is text, as that of a picture is not."""
    outer = caption.getparent()
    return next(outer.iterchildren("figcaption")) is caption and HOLDS_LINES(outer)


def is_of_column(cell: HtmlElement) -> bool:
    """Return True for a cell with few links, of the class of the one above or below it: a field of a table."""
    row, name = cell.getparent(), cell.get("class")
    place = row.index(cell)
    beside = [one for one in (row.getprevious(), row.getnext()) if one is not None and len(one) > place]
    return is_text(cell) and any(one[place].get("class") == name for one in beside)


def is_shown_code(area: HtmlElement) -> bool:
    """Return True for a text area of several lines that is for reading alone."""
    return "readonly" in area.attrib and (area.text or "").strip().count("\n") >= MIN_LINES - 1


def shown_parts(element: HtmlElement, tag: str) -> list[tuple[HtmlElement, str]]:
    """Parts of an element of a dropped tag that a browser shows as text, each with the tag as which it is read."""
    if tag == "textarea":
        return [(element, "pre")] if is_shown_code(element) else []
    if tag == "head" or (tag == "dialog" and "open" in element.attrib):  # a head in a body, or of a page without one
        return [(element, "div")]
    if tag == "menu":
        return [(element, "ul")] if is_text(element) else []
    return [(inner, "div") for inner in FOREIGN(element) if is_text(inner)] if tag == "svg" else []


def holds_main(element: HtmlElement) -> bool:
    """Return True if an element holds the main part of a page, as the page states it."""
    return any(
        inner.tag == "main" or inner.get("role") == "main" or inner.get("itemprop") == "articleBody"
        for inner in element.iter("main", "div", "section", "article", "td")
    )


def is_short(element: HtmlElement, limit: int) -> bool:
    """Return True if an element has at most `limit` letters."""
    limit -= letters(element.text or "")
    for inner in element.iterdescendants():  # half the time of `itertext`
        limit -= letters(inner.text or "") + letters(inner.tail or "")
        if limit < 0:
            return False
    return limit >= 0


def is_heading(element: HtmlElement) -> bool:
    """Return True for a heading that is no caption, or a short container that ends with a question."""
    if element.tag in HEADINGS:
        return "caption" not in (element.get("class") or "").lower()
    return element.text_content().rstrip().endswith(QUESTION_MARKS) and is_short(element, MAX_QUESTION_LINE)


def is_plain(element: HtmlElement) -> bool:
    """Return True for an element of few links, without controls, media and a page of its own.

    Pictures without a text are decoration.
    """
    linked = 0
    for inner in element.iter("a", *NO_PROSE):
        if inner.tag != "a":
            if inner.get("type") != "hidden" and inner.get("alt") != "":
                return False
        elif inner.get("href") is not None:
            name = inner.get("class") or ""
            if "button" in name or "btn" in name:
                return False
            linked += len(inner.text_content())
    return not linked or linked <= MAX_LINKED * len(element.text_content())


def is_text(element: HtmlElement) -> bool:
    """Return True for an element that holds running text, most of which is no link."""
    size = letters(" ".join(shown_text(element).split()))
    return size >= MIN_RUNNING and 2 * sum(letters(link.text_content()) for link in element.iter("a")) < size


def may_be_page(element: HtmlElement, tag: str) -> bool:
    """Return True for a caption, a navigation or the footer of a part that holds a text, as one that is not closed."""
    least = MIN_RUNNING if tag == "figcaption" else MIN_PAGE
    if tag not in ("figcaption", "footer", "nav") or letters(element.text_content()) < least or not is_text(element):
        return False
    return tag != "footer" or next(element.iterancestors("article", "main", "section"), None) is not None


def is_question(button: HtmlElement) -> bool:
    """Return True for a button that is the name of a part of the text, which it opens."""
    if next(button.iter(*HEADINGS), None) is not None or button.text_content().rstrip().endswith(QUESTION_MARKS):
        return True
    if any(outer.tag in QUESTIONS for outer in itertools.islice(button.iterancestors(), MAX_OUTER)):
        return True
    if "aria-expanded" not in button.attrib and not TOGGLE.search(button.get("class") or ""):
        controls = (button.get("aria-controls") or "").split()
        if not controls:
            return False
    after = button.getnext()
    return after is not None and after.tag in BLOCK_TAGS and is_text(after)


def is_attribution(element: HtmlElement) -> bool:
    """Return True for a `cite` in a quotation: a forum names there who wrote what it quotes."""
    return element.tag == "cite" and any(
        outer.tag == "blockquote" for outer in itertools.islice(element.iterancestors(), MAX_OUTER)
    )


def quotation_marks(element: HtmlElement, before: str) -> tuple[str, str]:
    """Signs before and after a `q`, which a browser puts there unless the page has its own."""
    text = "".join(element.itertext()).strip()
    is_quoted = not text or before.endswith(QUOTES) or text.startswith(QUOTES)
    return ("", "") if is_quoted else ('"', '"')


def kind_of(tag: str, outer: str) -> str:
    """Kind of the blocks in an element, of which `outer` is the one around it."""
    if tag in ("li", "dd", "dt"):
        return "li"
    if tag in HEADINGS:
        return "h"
    if tag in ("p", "blockquote"):
        return outer if outer in ("li", "td") else "p"
    return "td" if tag in CELLS else outer


def is_layout(cell: HtmlElement) -> bool:
    """Return True for a cell of a table that lays out a page: it holds parts of a text with headings or tables."""
    return len(cell) > 0 and next(cell.iter("h1", "h2", "h3", "table", "main", "article"), None) is not None


def is_link_to_page(element: HtmlElement) -> bool:
    """Return True for an `a` that is not the name of a paragraph, one that is never closed, or a question's control."""
    href = element.get("href")
    if not is_short(element, MIN_RUNNING if href is None else MAX_LINK):
        return False
    is_control = not href or href.startswith(("#", "javascript:"))
    return not (is_control and opens_text(element))


def annotated_verses(tree: HtmlElement) -> frozenset[HtmlElement]:
    """Elements of verses with annotations: line by line, in links of which one holds three of the lines."""
    return frozenset(one for one in {link.getparent() for link in LINES(tree)} if one.find(FIFTH_LINE) is not None)


def opens_text(link: HtmlElement) -> bool:
    """Return True for a link that opens the text after it, or after the element of which it is the end."""
    outer, is_control, is_scripted = link, False, "href" not in link.attrib and "name" not in link.attrib
    for _ in range(MAX_OUTER):
        is_control = is_control or not CONTROL_SIGNS.isdisjoint(outer.attrib) or "collapse" in outer.values()
        after, around = outer.getnext(), outer.getparent()
        if after is not None or around is None:
            is_control = is_control or (is_scripted and after is not None and is_closed(after))
            return is_control and after is not None and after.tag in BLOCK_TAGS and is_text(after)
        outer = around
    return False


def is_closed(element: HtmlElement) -> bool:
    """Return True for an element that is not displayed at first, by its own attributes."""
    return bool("hidden" in element.attrib or HIDDEN.search(element.get("style") or ""))


def own_site(tree: HtmlElement) -> str:
    """Site to which most absolute links of a page lead, by the last two labels of its host; "" if there is none."""
    return next((site for site, _ in Counter(filter(None, map(_site, HREFS(tree)))).most_common(1)), "")


def leads_elsewhere(links: HtmlElement, own: str) -> bool:
    """Return True for a list of links of which some lead to other sites than the page's own, by the first of them."""
    sites = [_site(link.get("href") or "") for link in itertools.islice(links.iter("a"), MAX_LINKS)]
    return sum(site not in ("", own) for site in sites) > MIN_ELSEWHERE * len(sites)


def _site(href: str) -> str:
    return ".".join(host_of(href).split(".")[-2:]) if "//" in href[:8] else ""


def is_mostly_links(tag: str, held: Contents, blocks: Sequence[Block]) -> bool:
    """Return True for a container most of which is links, or a paragraph of which hardly a word is not."""
    size, links = held.size, held.links
    is_paragraph = tag == "p" or (tag == "div" and size >= MIN_RUNNING and SENTENCE_END.search(blocks[held.start].text))
    if held.end - held.start == 1 and is_paragraph:
        return links > 0.8 * size and size < 200
    return links > 0.6 * size and (size < 2000 or links > 0.8 * size)
