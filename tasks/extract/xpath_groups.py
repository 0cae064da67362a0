"""XPath expressions over tags and attributes, evaluated together and once for each distinct element.

Each of trafilatura's expressions calls a regular expression several times per element, 40 % of its time. Whether it
matches an element depends on the element's tag and attributes alone, and a page repeats these.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lxml import etree
from lxml.html import HtmlElement

MAX_CACHED = 50_000  # cached keys per group; one site has some hundred
MAX_KEY = 300  # characters of attributes; longer keys are not cached
NAMES = re.compile(r"(?:self::|\.//)([a-z]\w*)")
ANY_TAG = re.compile(r"\*\[(?!\s*self::)")
ATTRIBUTES = re.compile(r"@([\w-]+)")

Key = tuple[Any, ...]  # tag and (name, value) of each relevant attribute


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
