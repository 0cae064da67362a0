"""trafilatura, the same text in half the time: what it does over and over is done once, what cannot matter is left out.

Inside `shortcuts()` trafilatura runs with these replaced, and gives the same text, byte for byte:

* Its XPath expressions call a regular expression several times for each element, 40 % of its time. Whether such an
  expression takes an element depends on the element's tag and attributes alone, and a page repeats these, so the
  expression is asked once for each distinct set (`Family`).
* Readability, justext and the text of the whole page are asked for where they can matter (`comparison.py`).
* Parts that are links for the most part are looked for once where nothing was found (`Links`).
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
from justext.core import define_stoplist
from justext.paragraph import Paragraph
from lxml import etree
from lxml.html import HtmlComment, HtmlElement, HtmlElementClassLookup
from trafilatura import core, external, htmlprocessing, main_extractor, utils, xml, xpaths
from trafilatura.htmlprocessing import delete_by_link_density, link_density_test
from trafilatura.main_extractor import prune_unwanted_sections
from trafilatura.settings import BASIC_CLEAN_XPATH, Extractor

from tasks.html.comparison import bounds, extract_and_compare, page_text, rescue

MAX_KNOWN = 50_000  # sets of attributes that an expression remembers; a site repeats some hundred
MAX_KEY = 300  # characters of attributes from which nothing is remembered
NAMES = re.compile(r"(?:self::|\.//)([a-z]\w*)")
ANY_TAG = re.compile(r"\*\[(?!\s*self::)")
ATTRIBUTES = re.compile(r"@([\w-]+)")
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
        (core, "_extract_and_compare", extract_and_compare),
        (core, "html2txt", page_text),
        (external, "justext_rescue", rescue),
        (main_extractor, "prune_unwanted_sections", links.prune),
        (main_extractor, "delete_by_link_density", links.delete),
        (baseline, "BASIC_CLEAN_XPATH", FAST[BASIC_CLEAN_XPATH]),
        (htmlprocessing, "link_density_test", links.test),
        (xml, "sanitize", _sanitize),
        (justext.core, "Paragraph", _Paragraph),
        (justext.core, "define_stoplist", stop_words.of),
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
        bounds.forget()
        if collecting:
            gc.enable()


def forget() -> None:
    """Forget what the expressions have learned."""
    for family in FAMILIES:
        family.known.clear()


def _tree_of(page: Parsed, _max_size: int | None = None) -> HtmlElement:
    return page.tree


def _prepare(tree: HtmlElement, options: Extractor, url: str | None) -> tuple[HtmlElement, None]:
    """A cleaned and converted copy. The cleaned copy before the conversion is made where it is asked for."""
    return core.convert_tags(core.tree_cleaning(copy(tree), options), options, url), None


class Links:
    """trafilatura's search for parts that are links for the most part.

    It asks each element twice; where the first time through nothing was deleted, the second finds nothing either.
    """

    def __init__(self) -> None:
        self.settled: set[str] = set()  # tags of which no element goes, as the tree is now
        self.backtracking = self.found = False

    def prune(self, *arguments: Any, **options: Any) -> HtmlElement:
        """All of trafilatura's pruning of a tree."""
        self.settled.clear()
        return prune_unwanted_sections(*arguments, **options)

    def delete(
        self, tree: HtmlElement, tag: str, backtracking: bool = False, favor_precision: bool = False
    ) -> HtmlElement:
        """Delete the elements of this tag, where one could go."""
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
        """trafilatura's test, which says no to an element without links after a slow search."""
        if next(element.iterdescendants("ref"), None) is None:
            return False, False
        goes, doubtful = link_density_test(element, favor_precision)
        self.found |= goes or (doubtful and self.backtracking)
        return goes, doubtful


links = Links()


def _sanitize(text: str, preserve_space: bool = False, trailing_space: bool = False) -> str | None:
    """trafilatura's cleaning of a text, here of the lines alone that have something to mend."""
    if trailing_space or not preserve_space:
        return utils.sanitize(text, preserve_space, trailing_space)
    lines = (
        line if line.isprintable() and "&" not in line else utils.line_processing(line, True)
        for line in text.splitlines()
    )
    return "\n".join(filter(None, lines)).replace("\u2424", "")


class StopWords:
    """justext's set of stop words; its own cache takes a hash of all 180,000 words each time it is asked."""

    def __init__(self) -> None:
        self.words: tuple[str, ...] = ()
        self.known: frozenset[str] = frozenset()

    def of(self, words: tuple[str, ...]) -> frozenset[str]:
        """The set of these words."""
        if self.words is not words:
            self.words, self.known = words, define_stoplist(words)
        return self.known


stop_words = StopWords()


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
