"""trafilatura's second opinions: readability, justext and a run in recall mode, asked for where they can matter.

trafilatura lets readability extract each page too, and takes its text where that is more than twice as long as its own,
or where its own has no paragraphs or more tables than these. A text below 3,000 characters it compares with the text of
the whole page, and extracts the page anew where it holds less than a fifth of it. Here `text_bound` comes first: where
the page holds too little text for an answer to matter, nobody is asked, and the text is the same, byte for byte.

`Sparing` options go further: a text of `SOUND_TEXT` characters in `SOUND_PARAGRAPHS` paragraphs stands without
readability. Of 3,679 test pages trafilatura asks it about 1,113, those with enough text. It takes the answer for 95 %
of those without a paragraph, 46 % of those with one, 22 % with two or three, 7 % with four to seven, and 3 % (9 of 310)
of the sound ones, which take 38 % of readability's time.
"""

from copy import copy
from typing import NamedTuple

from lxml import etree
from lxml.html import HtmlElement, document_fromstring
from trafilatura import core
from trafilatura.baseline import _BLOCK_ELEMS, html2txt
from trafilatura.core import ESCALATION_PAGE_SHARE
from trafilatura.external import SANITIZED_XPATH, compare_extraction, justext_rescue
from trafilatura.main_extractor import extract_content
from trafilatura.settings import Extractor

SOUND_PARAGRAPHS = 8
SOUND_TEXT = 500  # characters
EMPTY = document_fromstring("<html><body></body></html>")
UNCLEAN = etree.XPath(SANITIZED_XPATH)


class Sparing(Extractor):
    """Options of an extraction whose text stands where it is sound."""


class Uncleaned(NamedTuple):
    """A page that is copied and cleaned for justext if justext is asked."""

    tree: HtmlElement


class Bounds:
    """How much text the page at hand holds at most, counted once, and how much trafilatura has found in it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Let go of the page."""
        self.tree: HtmlElement | None = None
        self.counted: int | None = None
        self.own = 0

    def found(self, tree: HtmlElement, own: int) -> None:
        """So many characters are found on this page, from which nothing is removed until the next one is found."""
        self._turn_to(tree)
        self.own = own

    def most(self, tree: HtmlElement) -> int:
        """`text_bound` of the page."""
        self._turn_to(tree)
        if self.counted is None:
            self.counted = text_bound(tree)
        return self.counted

    def _turn_to(self, tree: HtmlElement) -> None:
        if self.tree is not tree:
            self.forget()
            self.tree = tree


bounds = Bounds()


def text_bound(tree: HtmlElement) -> int:
    """At most so many characters of text, white space collapsed, are in a page without its scripts and styles."""
    bound = _collapsed(tree.text_content())
    for element in tree.iter("script", "style", "iframe"):
        # readability writes VIDEO into some iframes; text on both sides of a script may grow together
        bound += 8 if element.tag == "iframe" else 2 - _collapsed(element.text or "")
    return bound


def extract_and_compare(
    cleaned: HtmlElement, _backup: None, tree: HtmlElement, options: Extractor
) -> tuple[etree._Element, str]:
    """trafilatura's own extraction, and the comparison with the others where one of them could be taken."""
    body, text = extract_content(cleaned, options)
    if not options.fast:
        stands = isinstance(options, Sparing) and is_sound(body, text)
        rival = not stands and _readability_may_win(tree, body, text, options)
        if rival or len(text) < options.min_extracted_size or UNCLEAN(body):
            body, text = compare_extraction(Uncleaned(tree), copy(tree if rival else EMPTY), body, text, options)
    if options.focus == "balanced":
        bounds.found(tree, len(text))
    return body, text


def is_sound(body: etree._Element, text: str) -> bool:
    """Whether a text is long enough, in enough paragraphs, to stand."""
    return len(text) >= SOUND_TEXT and sum(1 for _ in body.iter("p")) >= SOUND_PARAGRAPHS


def rescue(page: HtmlElement | Uncleaned, options: Extractor) -> tuple[etree._Element, str]:
    """justext's text of a page."""
    tree = core.tree_cleaning(copy(page.tree), options) if isinstance(page, Uncleaned) else page
    return justext_rescue(tree, options)


def page_text(tree: HtmlElement) -> str:
    """trafilatura's text of the whole page, with which it compares its own; nothing where that is surely too short.

    The text found last may only have grown since, and each block adds two spaces at most.
    """
    most = bounds.most(tree)
    if ESCALATION_PAGE_SHARE * most < bounds.own:
        most += 2 * sum(1 for _ in tree.iter(*_BLOCK_ELEMS))
        if ESCALATION_PAGE_SHARE * most < bounds.own:
            return ""
    return str(html2txt(tree))


def _readability_may_win(tree: HtmlElement, body: etree._Element, text: str, options: Extractor) -> bool:
    """Whether there is enough text on the page for readability's to be taken (trafilatura's conditions)."""
    if options.focus != "balanced" or not text:
        return True
    most = bounds.most(tree)
    if most > 2 * len(text):
        return True
    deficient = not body.xpath(".//p//text()") or len(body.findall(".//table")) > len(body.findall(".//p"))
    return deficient and most > 2 * options.min_extracted_size


def _collapsed(text: str) -> int:
    return len(" ".join(text.split()))
