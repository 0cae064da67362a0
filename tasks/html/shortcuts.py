"""trafilatura, the same text in half the time: what it does over and over is done once, what cannot matter is left out.

Inside `shortcuts()` trafilatura runs with these replaced, and gives the same text, byte for byte:

* Its XPath expressions call a regular expression several times for each element, 40 % of its time. Whether such an
  expression takes an element depends on the element's tag and attributes alone, and a page repeats these, so the
  expression is asked once for each distinct set (`Family`).
* It lets readability extract the page too, and takes that text where it is more than twice as long as its own (or its
  own lacks paragraphs). Where the whole page holds less text than that, readability need not run.
* lxml calls a Python function for each element to find the class of a form field; no form field is looked at here.
* The page is parsed once by us, and not copied.
* Python's cycle collector waits until the page is done; trees are freed by their reference counts.

All this leans on the inside of trafilatura 2.3, hence the bounds on its version; a test compares every expression and
every text with the plain ones. Not for threads: trafilatura's own modules are changed meanwhile.
"""

import contextlib
import gc
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import justext.core
from justext.paragraph import Paragraph
from lxml import etree
from lxml.html import HtmlComment, HtmlElement, HtmlElementClassLookup, document_fromstring
from trafilatura import core, htmlprocessing, utils, xpaths
from trafilatura.external import SANITIZED_XPATH, compare_extraction
from trafilatura.htmlprocessing import link_density_test
from trafilatura.main_extractor import extract_content
from trafilatura.settings import BASIC_CLEAN_XPATH, Extractor

MAX_KNOWN = 50_000  # sets of attributes that an expression remembers; a site repeats some hundred
MAX_KEY = 300  # characters of attributes from which nothing is remembered
NAMES = re.compile(r"(?:self::|\.//)([a-z]\w*)")
ANY_TAG = re.compile(r"\*\[(?!\s*self::)")
ATTRIBUTES = re.compile(r"@([\w-]+)")
EMPTY = document_fromstring("<html><body></body></html>")
FORM_CLASSES = HtmlElementClassLookup()
PLAIN_CLASSES = etree.ElementDefaultClassLookup(element=HtmlElement, comment=HtmlComment)

baseline = importlib.import_module("trafilatura.baseline")  # `trafilatura.baseline` is the function
Key = tuple[Any, ...]


class Parsed(NamedTuple):
    """A page that is already parsed; inside `shortcuts()` trafilatura takes it, and changes its tree."""

    tree: HtmlElement


class Family:
    """XPath expressions over tags and attributes that trafilatura asks of one tree, one after another.

    Takes `.//*[…]` and `(.//*[…])[1]` whose conditions look at the element's own tag and attributes. A condition on
    what is inside an element must hold for an empty one; the plain expression then decides where any element is found.
    The first expression looks through the tree for all of them; between the calls trafilatura only removes elements.

    Args:
        plain: the expressions, in the order in which they are asked.
        first: only the first element that one finds is wanted, and once one has found any the tree is changed.
    """

    def __init__(self, plain: Sequence[etree.XPath], first: bool = False) -> None:
        paths = " ".join(expression.path for expression in plain)
        self.plain = tuple(plain)
        self.first = first
        self.names = frozenset(NAMES.findall(paths))
        self.attributes = frozenset(ATTRIBUTES.findall(paths))
        self.tags = ["*"] if ANY_TAG.search(paths) else sorted(self.names)
        self.known: dict[Key, tuple[int, ...]] = {}
        self.tree: HtmlElement | None = None
        self.found: list[list[HtmlElement]] = []

    def members(self) -> list["Member"]:
        """What stands in for the expressions."""
        return [Member(self, number) for number in range(len(self.plain))]

    def search(self, tree: HtmlElement, asked: int) -> None:
        """Find the elements below `tree` that each expression takes, in document order.

        Where only the first is wanted, the search ends with the first that the expression number `asked` takes.
        """
        names, attributes, known = self.names, self.attributes, self.known
        self.tree, self.found = tree, [[] for _ in self.plain]
        matches: list[tuple[HtmlElement, Key, tuple[int, ...] | None]] = []  # None: the expressions are yet to be asked
        asks: dict[Key, tuple[int, ...]] = {}
        for element in tree.iterdescendants(*self.tags):
            tag, items = element.tag, element.items()
            if tag not in names:
                if not items:
                    continue
                tag = ""
            key: Key = (tag, *[item for item in items if item[0] in attributes])
            takers = known.get(key)
            if takers is None and self.first:
                takers = self._ask([key])[key]
            if takers is None:
                asks[key] = ()
            if takers is None or takers:
                matches.append((element, key, takers))
            if takers and self.first and asked in takers:
                break
        answers = self._ask(asks) if asks else {}
        for element, key, takers in matches:
            for number in answers[key] if takers is None else takers:
                self.found[number].append(element)

    def _ask(self, keys: Iterable[Key]) -> dict[Key, tuple[int, ...]]:
        """Which of the expressions take elements of these tags with these attributes."""
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
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known.update(
            (key, takers) for key, takers in answers.items() if sum(len(value) for _, value in key[1:]) <= MAX_KEY
        )
        return answers


class Member(NamedTuple):
    """One expression of a family; called with a tree as the plain one is."""

    family: Family
    number: int

    def __call__(self, tree: HtmlElement) -> list[HtmlElement]:
        """What the plain expression finds; where only the first is wanted, that one."""
        family, plain = self.family, self.family.plain[self.number]
        try:
            if self.number == 0 or family.tree is not tree:
                family.search(tree, self.number)
        except ValueError:  # an attribute holds what may be parsed but not written
            family.tree = None
            return list(plain(tree))
        found = family.found[self.number]
        if family.first:
            if found:
                family.tree = None
            return found[:1]
        if self.number:
            found = [element for element in found if any(above is tree for above in element.iterancestors())]
        return list(plain(tree)) if found and "not(.//" in plain.path else found


BODY = Family(xpaths.BODY_XPATH, first=True)
DISCARD = Family([*xpaths.OVERALL_DISCARD_XPATH, *xpaths.DISCARD_IMAGE_ELEMENTS, *xpaths.TEASER_DISCARD_XPATH])
RAW = Family([*xpaths.RAW_TREE_PRUNE_XPATH, *xpaths.REMOVE_COMMENTS_AND_LISTS_XPATH])
CLEAN = Family([BASIC_CLEAN_XPATH])
FAMILIES = (BODY, DISCARD, RAW, CLEAN)
FAST = {plain: fast for family in FAMILIES for plain, fast in zip(family.plain, family.members(), strict=True)}
# The lists that hold the expressions; trafilatura's modules share them.
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
def shortcuts() -> Iterator[None]:
    """Let trafilatura take the shortcuts meanwhile, also around a block that asks for them again.

    It then takes `Parsed` pages only.
    """
    if core.load_html is _tree_of:
        yield
        return
    replaced: list[tuple[Any, str, Any]] = [
        (core, "load_html", _tree_of),
        (core, "_prepare_tree", _prepare),
        (core, "_extract_and_compare", _extract_and_compare),
        (baseline, "BASIC_CLEAN_XPATH", FAST[BASIC_CLEAN_XPATH]),
        (htmlprocessing, "link_density_test", _link_density_test),
        (justext.core, "Paragraph", _Paragraph),
    ]
    plain = [getattr(module, name) for module, name, _ in replaced]
    collecting = gc.isenabled()
    try:
        gc.disable()
        for module, name, fast in replaced:
            setattr(module, name, fast)
        for expressions, members in zip(LISTS, FAST_LISTS, strict=True):
            expressions[:] = members
        utils.HTML_PARSER.set_element_class_lookup(PLAIN_CLASSES)
        yield
    finally:
        utils.HTML_PARSER.set_element_class_lookup(FORM_CLASSES)
        for expressions, plain_ones in zip(LISTS, PLAIN_LISTS, strict=True):
            expressions[:] = plain_ones
        for (module, name, _), value in zip(replaced, plain, strict=True):
            setattr(module, name, value)
        for family in FAMILIES:
            family.tree, family.found = None, []
        if collecting:
            gc.enable()


def forget() -> None:
    """Forget what the expressions have learned."""
    for family in FAMILIES:
        family.known.clear()


def text_bound(tree: HtmlElement) -> int:
    """At most so many characters of text, white space collapsed, are in a page without its scripts and styles."""
    bound = _collapsed(tree.text_content())
    for element in tree.iter("script", "style", "iframe"):
        # readability writes VIDEO into some iframes; text on both sides of a script may grow together
        bound += 8 if element.tag == "iframe" else 2 - _collapsed(element.text or "")
    return bound


def _collapsed(text: str) -> int:
    return len(" ".join(text.split()))


def _tree_of(page: Parsed, _max_size: int | None = None) -> HtmlElement:
    return page.tree


def _prepare(tree: HtmlElement, options: Extractor, url: str | None) -> tuple[HtmlElement, None]:
    """A cleaned and converted copy. The cleaned copy before the conversion is made where it is asked for."""
    return core.convert_tags(core.tree_cleaning(copy(tree), options), options, url), None


def _extract_and_compare(
    cleaned: HtmlElement, _backup: None, tree: HtmlElement, options: Extractor
) -> tuple[etree._Element, str]:
    """trafilatura's own extraction, and the comparison with the others where one of them could be taken."""
    body, text = extract_content(cleaned, options)
    if options.fast:
        return body, text
    rival = _readability_may_win(tree, body, text, options)
    if not rival and len(text) >= options.min_extracted_size and not body.xpath(SANITIZED_XPATH):
        return body, text
    backup = core.tree_cleaning(copy(tree), options)
    return compare_extraction(backup, copy(tree if rival else EMPTY), body, text, options)


def _readability_may_win(tree: HtmlElement, body: etree._Element, text: str, options: Extractor) -> bool:
    """Whether there is enough text on the page for readability's to be taken (trafilatura's conditions)."""
    if options.focus != "balanced" or not text:
        return True
    bound = text_bound(tree)
    if bound > 2 * len(text):
        return True
    deficient = not body.xpath(".//p//text()") or len(body.findall(".//table")) > len(body.findall(".//p"))
    return deficient and bound > 2 * options.min_extracted_size


def _link_density_test(element: HtmlElement, favor_precision: bool = False) -> tuple[bool, bool]:
    """trafilatura's test, which says no to an element without links after a slow search."""
    if next(element.iterdescendants("ref"), None) is None:
        return False, False
    return link_density_test(element, favor_precision)


class _Path(NamedTuple):
    dom: str
    xpath: str = ""


class _Paragraph(Paragraph):
    """justext's paragraph, whose text is put together once instead of eight times, and whose XPath nobody reads."""

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
