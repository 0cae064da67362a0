"""Replacements of parts of justext: the same classes of paragraphs, in a time linear in their number.

justext walks from each short paragraph to its neighbours (5 CPU s for 5,000 list items); here it is one pass in each
direction.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.extract.compat import Paragraph, define_stoplist, revise_paragraph_classification


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


class FastParagraph(Paragraph):
    """justext's paragraph that joins its text once instead of eight times, and has no XPath, which is not read."""

    def __init__(self, path: Any) -> None:
        self.joined: str | None = None
        super().__init__(_Path(path.dom))

    @property
    def text(self) -> str:
        """Text of the paragraph."""
        if self.joined is None:
            self.joined = super().text
        return self.joined

    def append_text(self, text: str) -> str:
        """Add text."""
        self.joined = None
        return str(super().append_text(text))
