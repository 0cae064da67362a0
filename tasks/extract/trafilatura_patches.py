"""Monkeypatches of trafilatura and justext: the same text, byte for byte, in half the time.

Inside `apply_patches()` these parts are replaced:

* XPath expressions: evaluated once for each distinct set of tag and attributes (`xpath_groups.py`).
* Fallbacks: readability, justext and the text of the whole page run only if they can change the text
  (`trafilatura_fallbacks.py`).
* Paragraphs and stop words of justext (`justext_patches.py`).
* Link density: elements that are mostly links are searched once if the first search finds none (`LinkPruning`).
* Element classes: lxml calls a Python function for each element to find the class of form fields, which are not used.
* Parsing: a page is parsed once and not copied.
* Garbage collection: Python's cycle collector is off until the page is done; trees are freed by reference counts.

The internals that the patches depend on are in `compat.py`; tests compare every expression and every text with the
original ones. Not thread-safe: trafilatura's own modules are changed meanwhile.
"""

import contextlib
import gc
from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

from lxml import etree
from lxml.html import HtmlComment, HtmlElement, HtmlElementClassLookup
from trafilatura.settings import Extractor

from tasks.extract import compat
from tasks.extract.compat import core, utils, xpaths
from tasks.extract.justext_patches import FastParagraph, revise, stop_words
from tasks.extract.trafilatura_fallbacks import bounds, extract_and_compare, page_text, rescue
from tasks.extract.xpath_groups import XPathGroup

FORM_CLASSES = HtmlElementClassLookup()
PLAIN_CLASSES = etree.ElementDefaultClassLookup(element=HtmlElement, comment=HtmlComment)


class Parsed(NamedTuple):
    """Parsed page; inside `apply_patches()` trafilatura takes no other input, and changes the tree."""

    tree: HtmlElement


BODY = XPathGroup(xpaths.BODY_XPATH, first=True)
DISCARD = XPathGroup([*xpaths.OVERALL_DISCARD_XPATH, *xpaths.DISCARD_IMAGE_ELEMENTS, *xpaths.TEASER_DISCARD_XPATH])
RAW = XPathGroup([*xpaths.RAW_TREE_PRUNE_XPATH, *xpaths.REMOVE_COMMENTS_AND_LISTS_XPATH])
CLEAN = XPathGroup([compat.BASIC_CLEAN_XPATH])
GROUPS = (BODY, DISCARD, RAW, CLEAN)
FAST = {plain: fast for group in GROUPS for plain, fast in zip(group.plain, group.members(), strict=True)}
# Lists of the expressions, shared by the modules of trafilatura.
LISTS = (
    xpaths.BODY_XPATH,
    xpaths.DISCARD_IMAGE_ELEMENTS,
    xpaths.OVERALL_DISCARD_XPATH,
    xpaths.RAW_TREE_PRUNE_XPATH,
    xpaths.REMOVE_COMMENTS_AND_LISTS_XPATH,
    xpaths.TEASER_DISCARD_XPATH,
)
PLAIN_LISTS = tuple(tuple(expressions) for expressions in LISTS)


@contextlib.contextmanager
def apply_patches() -> Iterator[None]:
    """Context in which trafilatura runs with the patches; may be nested.

    trafilatura then accepts `Parsed` pages only.
    """
    if core.load_html is _tree_of:
        yield
        return
    fast = {
        "load_html": _tree_of,
        "_prepare_tree": _prepare,
        "_extract_and_compare": extract_and_compare,
        "html2txt": page_text,
        "justext_rescue": rescue,
        "revise_paragraph_classification": revise,
        "prune_unwanted_sections": link_pruning.prune,
        "delete_by_link_density": link_pruning.delete,
        "BASIC_CLEAN_XPATH": FAST[compat.BASIC_CLEAN_XPATH],
        "link_density_test": link_pruning.test,
        "sanitize": _sanitize,
        "Paragraph": FastParagraph,
        "define_stoplist": stop_words.of,
    }
    collecting = gc.isenabled()
    try:
        gc.disable()
        for expressions in LISTS:
            expressions[:] = [FAST[plain] for plain in expressions]
        utils.HTML_PARSER.set_element_class_lookup(PLAIN_CLASSES)
        with compat.replaced(fast):
            yield
    finally:
        utils.HTML_PARSER.set_element_class_lookup(FORM_CLASSES)
        for expressions, plain_ones in zip(LISTS, PLAIN_LISTS, strict=True):
            expressions[:] = plain_ones
        for group in GROUPS:
            group.tree, group.found = None, []
        bounds.reset()
        if collecting:
            gc.enable()


def clear_caches() -> None:
    """Clear the caches of all expression groups."""
    for group in GROUPS:
        group.cache.clear()


def _tree_of(page: Parsed, _max_size: int | None = None) -> HtmlElement:
    return page.tree


def _prepare(tree: HtmlElement, options: Extractor, url: str | None) -> tuple[HtmlElement, None]:
    """Cleaned and converted copy of a page; the backup copy before the conversion is made only when it is used."""
    return core.convert_tags(core.tree_cleaning(copy(tree), options), options, url), None


class LinkPruning:
    """trafilatura's removal of elements that consist mostly of links.

    trafilatura tests each element twice; if the first pass deletes nothing, the second finds nothing either.
    """

    def __init__(self) -> None:
        self.settled: set[str] = set()  # tags without an element to delete in the current tree
        self.backtracking = self.found = False

    def prune(self, *arguments: Any, **options: Any) -> HtmlElement:
        """Replacement of `prune_unwanted_sections`, with an empty state for each tree."""
        self.settled.clear()
        return compat.prune_unwanted_sections(*arguments, **options)

    def delete(
        self, tree: HtmlElement, tag: str, backtracking: bool = False, favor_precision: bool = False
    ) -> HtmlElement:
        """Replacement of `delete_by_link_density` that skips tags without an element to delete."""
        if tag in self.settled or next(tree.iterdescendants("ref"), None) is None:
            return tree
        self.backtracking, self.found = backtracking, False
        tree = compat.delete_by_link_density(tree, tag, backtracking, favor_precision)
        if self.found:
            self.settled.clear()
        else:
            self.settled.add(tag)
        return tree

    def test(self, element: HtmlElement, favor_precision: bool = False) -> tuple[bool, bool]:
        """Replacement of `link_density_test` that rejects an element without links before the slow search."""
        if next(element.iterdescendants("ref"), None) is None:
            return False, False
        delete, doubtful = compat.link_density_test(element, favor_precision)
        self.found |= delete or (doubtful and self.backtracking)
        return delete, doubtful


link_pruning = LinkPruning()


def _sanitize(text: str, preserve_space: bool = False, trailing_space: bool = False) -> str | None:
    """Replacement of `xml.sanitize` that processes only the lines that need it."""
    if trailing_space or not preserve_space:
        return utils.sanitize(text, preserve_space, trailing_space)
    lines = (
        line if line.isprintable() and "&" not in line else utils.line_processing(line, True)
        for line in text.splitlines()
    )
    return "\n".join(filter(None, lines)).replace("\u2424", "")
