"""Containers of a page that may hold its main content."""

from typing import NamedTuple

from lxml.html import HtmlElement

from tasks.extract.blocks import MIN_RUNNING, SENTENCE_ENDS, Contents, letters
from tasks.extract.elements import is_plain, is_short

MIN_BESIDE = 0.2  # of the running text of a container, in paragraphs beside it
MIN_PARAGRAPHS = 2  # beside it; one alone may introduce it


class Candidate(NamedTuple):
    """Container that may hold the main content; `level` as in `attribute_rules`."""

    level: int
    start: int
    end: int
    tag: str
    name: str


class Candidates:
    """Candidates of a page, inner ones first.

    A container with paragraphs beside it holds a part of a text: the element around both has its level.
    """

    def __init__(self) -> None:
        self.found: list[Candidate] = []
        self.levels: dict[HtmlElement, int] = {}  # of elements around such containers
        self._sizes: dict[HtmlElement, int] = {}  # characters of the paragraphs in an element around a candidate

    def add(self, element: HtmlElement, tag: str, level: int, held: Contents) -> None:
        """Note a container of a level, unless that is -1 and no part of it had one."""
        level = self.levels.get(element, level)
        if level < 0:
            return
        outer = element.getparent()
        if outer not in self._sizes:
            self._sizes[outer] = _paragraph_size(outer)
        own = 0 if len(element) else held.size
        if self._sizes[outer] - own > MIN_BESIDE * held.running:
            self.levels[outer] = level
        else:
            self.found.append(Candidate(level, held.start, held.end, tag, element.get("class") or ""))


def _paragraph_size(element: HtmlElement) -> int:
    """Characters of the paragraphs of whole sentences at the first level of an element, if there are several."""
    texts = [
        inner.text_content().rstrip()
        for inner in element.iterchildren("p", "div")
        if (inner.tag == "p" or not len(inner)) and not is_short(inner, MIN_RUNNING) and is_plain(inner)
    ]
    sizes = [letters(one) for one in texts if one.endswith(SENTENCE_ENDS)]
    return sum(sizes) if len(sizes) >= MIN_PARAGRAPHS else 0
