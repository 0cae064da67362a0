"""Monkeypatches of trafilatura and justext: the same text, byte for byte, in half the time.

Inside `apply_patches()` these parts are replaced:

* XPath expressions: each calls a regular expression several times per element, 40 % of the time. Whether such an
  expression matches an element depends on the element's tag and attributes alone, and a page repeats these, so each
  distinct set of tag and attributes is evaluated once (`XPathGroup`).
* Fallbacks: readability, justext and the text of the whole page run only if they can change the text
  (`trafilatura_fallbacks.py`).
* Classes of short paragraphs in justext: one pass in each direction instead of a walk from each paragraph, which is
  quadratic in their number (5 CPU s for 5,000 list items).
* Link density: elements that are mostly links are searched once if the first search finds none (`LinkPruning`).
* Element classes: lxml calls a Python function for each element to find the class of form fields, which are not used.
* Parsing: a page is parsed once and not copied.
* Garbage collection: Python's cycle collector is off until the page is done; trees are freed by reference counts.

The internals that the patches depend on are in `compat.py`; tests compare every expression and every text with the
original ones. Not thread-safe: trafilatura's own modules are changed meanwhile.
"""

import contextlib
import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

from lxml import etree
from lxml.html import HtmlComment, HtmlElement, HtmlElementClassLookup
from trafilatura.settings import Extractor

from tasks.extract.compat import (
    BASIC_CLEAN_XPATH,
    Paragraph,
    core,
    define_stoplist,
    delete_by_link_density,
    link_density_test,
    prune_unwanted_sections,
    replaced,
    revise_paragraph_classification,
    utils,
    xpaths,
)
from tasks.extract.trafilatura_fallbacks import bounds, extract_and_compare, page_text, rescue

MAX_CACHED = 50_000  # cached keys per group; one site has some hundred
MAX_KEY = 300  # characters of attributes; longer keys are not cached
NAMES = re.compile(r"(?:self::|\.//)([a-z]\w*)")
ANY_TAG = re.compile(r"\*\[(?!\s*self::)")
ATTRIBUTES = re.compile(r"@([\w-]+)")
FORM_CLASSES = HtmlElementClassLookup()
PLAIN_CLASSES = etree.ElementDefaultClassLookup(element=HtmlElement, comment=HtmlComment)

Key = tuple[Any, ...]  # tag and (name, value) of each relevant attribute


class Parsed(NamedTuple):
    """Parsed page; inside `apply_patches()` trafilatura takes no other input, and changes the tree."""

    tree: HtmlElement


class XPathGroup:
    """XPath expressions over tags and attributes that trafilatura evaluates on one tree, one after another.

    Supports `.//*[…]` and `(.//*[…])[1]` with conditions on the element's own tag and attributes. A condition on the
    content of an element must hold for an empty one; the original expression then decides if any element is found.
    The call of the first expression searches the tree for all of them; between the calls trafilatura only removes
    elements.

    Args:
        plain: original expressions, in the order of their evaluation.
        first: only the first match of an expression is used, and the tree is changed after a match.
    """

    def __init__(self, plain: Sequence[etree.XPath], first: bool = False) -> None:
        paths = " ".join(expression.path for expression in plain)
        self.plain = tuple(plain)
        self.first = first
        self.names = frozenset(NAMES.findall(paths))
        self.attributes = frozenset(ATTRIBUTES.findall(paths))
        self.tags = ["*"] if ANY_TAG.search(paths) else sorted(self.names)
        self.cache: dict[Key, tuple[int, ...]] = {}
        self.tree: HtmlElement | None = None
        self.found: list[list[HtmlElement]] = []

    def members(self) -> list["GroupedXPath"]:
        """Replacements of the expressions, in order."""
        return [GroupedXPath(self, number) for number in range(len(self.plain))]

    def search(self, tree: HtmlElement, current: int) -> None:
        """Find the elements below `tree` that match each expression, in document order.

        If only the first match is used, the search ends with the first match of the expression number `current`.
        """
        names, attributes, cache = self.names, self.attributes, self.cache
        self.tree, self.found = tree, [[] for _ in self.plain]
        matches: list[tuple[HtmlElement, Key, tuple[int, ...] | None]] = []  # None: not evaluated yet
        unknown: dict[Key, tuple[int, ...]] = {}
        for element in tree.iterdescendants(*self.tags):
            tag, items = element.tag, element.items()
            if tag not in names:
                if not items:
                    continue
                tag = ""
            key: Key = (tag, *[item for item in items if item[0] in attributes])
            matching = cache.get(key)
            if matching is None and self.first:
                matching = self._evaluate([key])[key]
            if matching is None:
                unknown[key] = ()
            if matching is None or matching:
                matches.append((element, key, matching))
            if matching and self.first and current in matching:
                break
        evaluated = self._evaluate(unknown) if unknown else {}
        for element, key, matching in matches:
            for number in evaluated[key] if matching is None else matching:
                self.found[number].append(element)

    def _evaluate(self, keys: Iterable[Key]) -> dict[Key, tuple[int, ...]]:
        """Numbers of the expressions that match an element of each tag with these attributes."""
        root = etree.Element("root")
        elements = {}
        for key in keys:
            elements[key] = etree.SubElement(root, key[0] or "other")
            for name, value in key[1:]:
                elements[key].set(name, value)
        taken = [set(plain(root)) for plain in self.plain]
        answers = {
            key: tuple(number for number, found in enumerate(taken) if element in found)
            for key, element in elements.items()
        }
        if len(self.cache) >= MAX_CACHED:
            self.cache.clear()
        self.cache.update(
            (key, matching) for key, matching in answers.items() if sum(len(value) for _, value in key[1:]) <= MAX_KEY
        )
        return answers


class GroupedXPath(NamedTuple):
    """One expression of a group, called like the original `etree.XPath`."""

    group: XPathGroup
    number: int
    """Index of the expression in the group."""

    def __call__(self, tree: HtmlElement) -> list[HtmlElement]:
        """Matches of the original expression; only the first one if the group uses no other."""
        group, plain = self.group, self.group.plain[self.number]
        try:
            if self.number == 0 or group.tree is not tree:
                group.search(tree, self.number)
        except ValueError:  # an attribute contains characters that can be parsed but not set
            group.tree = None
            return list(plain(tree))
        found = group.found[self.number]
        if group.first:
            if found:
                group.tree = None
            return found[:1]
        if self.number:
            found = [element for element in found if any(above is tree for above in element.iterancestors())]
        return list(plain(tree)) if found and "not(.//" in plain.path else found


BODY = XPathGroup(xpaths.BODY_XPATH, first=True)
DISCARD = XPathGroup([*xpaths.OVERALL_DISCARD_XPATH, *xpaths.DISCARD_IMAGE_ELEMENTS, *xpaths.TEASER_DISCARD_XPATH])
RAW = XPathGroup([*xpaths.RAW_TREE_PRUNE_XPATH, *xpaths.REMOVE_COMMENTS_AND_LISTS_XPATH])
CLEAN = XPathGroup([BASIC_CLEAN_XPATH])
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
FAST_LISTS = tuple(tuple(FAST[plain] for plain in expressions) for expressions in PLAIN_LISTS)


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
        "BASIC_CLEAN_XPATH": FAST[BASIC_CLEAN_XPATH],
        "link_density_test": link_pruning.test,
        "sanitize": _sanitize,
        "Paragraph": _Paragraph,
        "define_stoplist": stop_words.of,
    }
    collecting = gc.isenabled()
    try:
        gc.disable()
        for expressions, members in zip(LISTS, FAST_LISTS, strict=True):
            expressions[:] = members
        utils.HTML_PARSER.set_element_class_lookup(PLAIN_CLASSES)
        with replaced(fast):
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
        return prune_unwanted_sections(*arguments, **options)

    def delete(
        self, tree: HtmlElement, tag: str, backtracking: bool = False, favor_precision: bool = False
    ) -> HtmlElement:
        """Replacement of `delete_by_link_density` that skips tags without an element to delete."""
        if tag in self.settled or next(tree.iterdescendants("ref"), None) is None:
            return tree
        self.backtracking, self.found = backtracking, False
        tree = delete_by_link_density(tree, tag, backtracking, favor_precision)
        if self.found:
            self.settled.clear()
        else:
            self.settled.add(tag)
        return tree

    def test(self, element: HtmlElement, favor_precision: bool = False) -> tuple[bool, bool]:
        """Replacement of `link_density_test` that rejects an element without links before the slow search."""
        if next(element.iterdescendants("ref"), None) is None:
            return False, False
        delete, doubtful = link_density_test(element, favor_precision)
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


class StopWords:
    """Cache of justext's set of stop words; its own cache hashes all 180,000 words at each call."""

    def __init__(self) -> None:
        self.words: tuple[str, ...] = ()
        self.stop_words: frozenset[str] = frozenset()

    def of(self, words: tuple[str, ...]) -> frozenset[str]:
        """Set of these words; replacement of `define_stoplist`."""
        if self.words is not words:
            self.words, self.stop_words = words, define_stoplist(words)
        return self.stop_words


stop_words = StopWords()


def revise(paragraphs: Sequence[Paragraph], max_heading_distance: int) -> None:
    """Replacement of `revise_paragraph_classification`, linear in the number of paragraphs.

    A short paragraph takes the class of its neighbours, the nearest `good` or `bad` paragraphs on both sides. If these
    differ, a `neargood` paragraph between it and the `bad` one makes it good. Both ends of the page count as bad.
    """
    if any(paragraph.heading for paragraph in paragraphs):  # never by trafilatura, which treats headings as text
        revise_paragraph_classification(paragraphs, max_heading_distance)
        return
    classes = [paragraph.cf_class for paragraph in paragraphs]
    before, after = _neighbours(classes), _neighbours(classes[::-1])[::-1]
    for number, (own, above, below) in enumerate(zip(classes, before, after, strict=True)):
        if own == "short":
            decided = {above.decided, below.decided}
            between = any(one.decided == "bad" and one.nearest == "neargood" for one in (above, below))
            classes[number] = "good" if decided == {"good"} or (len(decided) == 2 and between) else "bad"
    after = _neighbours(classes[::-1])[::-1]
    last = "bad"
    for number, below in enumerate(after):
        if classes[number] == "neargood":
            classes[number] = "bad" if last == below.decided == "bad" else "good"
        last = classes[number]
    for paragraph, found in zip(paragraphs, classes, strict=True):
        paragraph.class_type = found


class _Neighbour(NamedTuple):
    """Nearest paragraphs on one side of a paragraph."""

    decided: str = "bad"
    """Class of the nearest paragraph that is good or bad."""
    nearest: str = "bad"
    """Class of the nearest paragraph that is not short."""


def _neighbours(classes: Sequence[str]) -> list[_Neighbour]:
    """Classes of the nearest decided and the nearest not short paragraph before each paragraph."""
    found, last = [], _Neighbour()
    for own in classes:
        found.append(last)
        if own == "neargood":
            last = _Neighbour(last.decided, own)
        elif own != "short":
            last = _Neighbour(own, own)
    return found


class _Path(NamedTuple):
    """Replacement of justext's path that does not build the XPath."""

    dom: str
    xpath: str = ""


class _Paragraph(Paragraph):
    """justext's paragraph that joins its text once instead of eight times, and has no XPath, which is not read."""

    def __init__(self, path: Any) -> None:
        self.joined: str | None = None
        super().__init__(_Path(path.dom))

    @property
    def text(self) -> str:
        if self.joined is None:
            self.joined = super().text
        return self.joined

    def append_text(self, text: str) -> str:
        self.joined = None
        return str(super().append_text(text))
