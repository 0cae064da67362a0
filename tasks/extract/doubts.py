"""Words that are text only if a sentence stands around them: those of marked inline elements and of controls."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lxml.html import HtmlElement


class Doubt(NamedTuple):
    """Pieces of a block that may be no words of it, and the letters of links in them."""

    start: int
    end: int
    links: int
    element: HtmlElement
    is_control: bool


def unsupported(pieces: Sequence[str], doubts: Sequence[Doubt]) -> list[Doubt]:
    """Doubts of a block that no other words support, the last one first.

    Words of a marked element need letters before or after them, those of a control on both sides.
    """
    starts, ends = [one.start for one in doubts], [one.end for one in doubts]
    certain = [  # letters before the first doubt, between two, and after the last one
        has_letters(pieces[start:end]) for start, end in zip([0, *ends], [*starts, None], strict=True)
    ]
    places = [number for number, has in enumerate(certain) if has] or [len(certain)]
    found = []
    for number in reversed(range(len(doubts))):
        before, after = places[0] <= number, number < places[-1] < len(certain)
        if not ((before and after) if doubts[number].is_control else (before or after)):
            found.append(doubts[number])
    return found


def has_letters(pieces: Iterable[str]) -> bool:
    """Return True if letters or digits are in the pieces."""
    return any(any(map(str.isalnum, piece)) for piece in pieces)
