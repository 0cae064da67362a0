"""Rejection of a text by a filter, and helpers shared by the filters."""

from collections.abc import Iterable
from typing import NamedTuple


class Rejection(NamedTuple):
    """Reason for which a text is dropped."""

    reason: str
    """Reason code of the rule."""
    detail: str
    """Found and expected values; never the text itself."""


def too_many(reason: str, share: float, maximum: float) -> Rejection | None:
    """Rejection if a share is above its maximum."""
    return Rejection(reason, f"{share:.3f}, at most {maximum:g} expected") if share > maximum else None


def too_few(reason: str, share: float, minimum: float) -> Rejection | None:
    """Rejection if a share is below its minimum."""
    return Rejection(reason, f"{share:.3f}, at least {minimum:g} expected") if share < minimum else None


def first_rejection(found: Iterable[Rejection | None]) -> Rejection | None:
    """First rejection of an iterable; the rules after it are not computed if `found` is a generator."""
    return next((item for item in found if item is not None), None)


def repeated(items: Iterable[str]) -> tuple[int, int]:
    """Number of repeated items, and of the characters in them."""
    seen: set[str] = set()
    count = characters = 0
    for item in items:
        if item in seen:
            count += 1
            characters += len(item)
        seen.add(item)
    return count, characters
