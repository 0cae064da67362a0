"""What a rule says of a text that does not pass it, and the arithmetic that the rules share."""

from collections.abc import Iterable
from typing import NamedTuple


class Found(NamedTuple):
    """Why a text goes."""

    reason: str
    """Code of the rule."""
    detail: str
    """What was found and what was expected; never the text itself."""


def too_many(reason: str, share: float, most: float) -> Found | None:
    """A share above its limit."""
    return Found(reason, f"{share:.3f}, at most {most:g} expected") if share > most else None


def too_few(reason: str, share: float, least: float) -> Found | None:
    """A share below its limit."""
    return Found(reason, f"{share:.3f}, at least {least:g} expected") if share < least else None


def first(found: Iterable[Found | None]) -> Found | None:
    """The first rule that a text does not pass; the rules behind it are not computed where `found` is lazy."""
    return next((item for item in found if item is not None), None)


def repeated(items: Iterable[str]) -> tuple[int, int]:
    """How many items were seen before, and how many characters they have."""
    seen: set[str] = set()
    count = characters = 0
    for item in items:
        if item in seen:
            count += 1
            characters += len(item)
        seen.add(item)
    return count, characters
