"""trafilatura's fallbacks (readability, justext, extraction in recall mode), run only if they can change the text.

trafilatura also runs readability on each page, and takes its text if that is more than twice as long as its own, or if
its own has no paragraphs or more tables than paragraphs. It compares a text below 3,000 characters with the text of the
whole page, and extracts the page again if the text holds less than a fifth of it. Here `text_bound` is computed first:
if the page has too little text for a fallback to be taken, the fallback is skipped. The text is the same byte for byte.

`FastOptions` skip more: a text of `SOUND_TEXT` characters in `SOUND_PARAGRAPHS` paragraphs is kept without readability.
trafilatura runs readability on 1,113 of 3,679 test pages, those with enough text. It takes the result for 95 % of the
pages without a paragraph, 46 % of those with one, 22 % with two or three, 7 % with four to seven, and 3 % (9 of 310) of
the sound ones, which take 38 % of the time of readability.
"""

from copy import copy
from typing import NamedTuple

from lxml import etree
from lxml.html import HtmlElement, document_fromstring
from trafilatura.settings import Extractor

from tasks.extract import compat

SOUND_PARAGRAPHS = 8
SOUND_TEXT = 500  # characters
EMPTY = document_fromstring("<html><body></body></html>")
UNSANITIZED = etree.XPath(compat.SANITIZED_XPATH)


class FastOptions(Extractor):
    """Extractor options that mark an extraction without readability for sound texts."""


class LazyTree(NamedTuple):
    """Page that is copied and cleaned for justext only if justext runs."""

    tree: HtmlElement


class TextBounds:
    """Text length of the current page: its upper bound, computed once, and the length that trafilatura extracted."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Release the page."""
        self.tree: HtmlElement | None = None
        self.bound: int | None = None  # `text_bound` of the page, when it is computed
        self.extracted = 0  # characters

    def record(self, tree: HtmlElement, extracted: int) -> None:
        """Record the characters extracted from a page; nothing is removed from it until the next page is recorded."""
        self._select(tree)
        self.extracted = extracted

    def upper_bound(self, tree: HtmlElement) -> int:
        """`text_bound` of the page."""
        self._select(tree)
        if self.bound is None:
            self.bound = text_bound(tree)
        return self.bound

    def _select(self, tree: HtmlElement) -> None:
        if self.tree is not tree:
            self.reset()
            self.tree = tree


bounds = TextBounds()


def text_bound(tree: HtmlElement) -> int:
    """Upper bound of the characters of text in a page, white space collapsed, without scripts and styles."""
    bound = _collapsed(tree.text_content())
    for element in tree.iter("script", "style", "iframe"):
        # readability writes VIDEO into some iframes; removing a script may join the texts on both of its sides
        bound += 8 if element.tag == "iframe" else 2 - _collapsed(element.text or "")
    return bound


def extract_and_compare(
    cleaned: HtmlElement, _backup: None, tree: HtmlElement, options: Extractor
) -> tuple[etree._Element, str]:
    """Replacement of `core._extract_and_compare`: runs the comparison only if a fallback could be taken."""
    body, text = compat.extract_content(cleaned, options)
    if not options.fast:
        sound = isinstance(options, FastOptions) and is_sound(body, text)
        competes = not sound and _readability_may_win(tree, body, text, options)
        if competes or len(text) < options.min_extracted_size or UNSANITIZED(body):
            body, text = compat.compare_extraction(
                LazyTree(tree), copy(tree if competes else EMPTY), body, text, options
            )
    if options.focus == "balanced":
        bounds.record(tree, len(text))
    return body, text


def is_sound(body: etree._Element, text: str) -> bool:
    """Returns True if a text has `SOUND_TEXT` characters and `SOUND_PARAGRAPHS` paragraphs."""
    return len(text) >= SOUND_TEXT and sum(1 for _ in body.iter("p")) >= SOUND_PARAGRAPHS


def rescue(page: HtmlElement | LazyTree, options: Extractor) -> tuple[etree._Element, str]:
    """Text of a page by justext; replacement of `external.justext_rescue`."""
    tree = compat.core.tree_cleaning(copy(page.tree), options) if isinstance(page, LazyTree) else page
    return compat.justext_rescue(tree, options)


def page_text(tree: HtmlElement) -> str:
    """Text of the whole page, with which trafilatura compares its own; "" if that is too short to matter.

    Replacement of `core.html2txt`. The recorded text can only have grown since, and each block adds at most two spaces.
    """
    bound = bounds.upper_bound(tree)
    if compat.ESCALATION_PAGE_SHARE * bound < bounds.extracted:
        bound += 2 * sum(1 for _ in tree.iter(*compat.BLOCK_ELEMENTS))
        if compat.ESCALATION_PAGE_SHARE * bound < bounds.extracted:
            return ""
    return str(compat.html2txt(tree))


def _readability_may_win(tree: HtmlElement, body: etree._Element, text: str, options: Extractor) -> bool:
    """Returns True if the page has enough text for that of readability to be taken, by trafilatura's conditions."""
    if options.focus != "balanced" or not text:
        return True
    bound = bounds.upper_bound(tree)
    if bound > 2 * len(text):
        return True
    deficient = not body.xpath(".//p//text()") or len(body.findall(".//table")) > len(body.findall(".//p"))
    return deficient and bound > 2 * options.min_extracted_size


def _collapsed(text: str) -> int:
    """Number of characters after collapsing white space."""
    return len(" ".join(text.split()))
