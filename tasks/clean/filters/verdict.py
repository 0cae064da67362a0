"""Rejection of a text by a filter, and helpers shared by the filters."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

S = TypeVar("S")


class Rejection(NamedTuple):
    """Reason for which a text is dropped."""

    reason: str  # reason code of the rule
    detail: str  # found and expected values; never the text itself


def too_many(reason: str, share: float, maximum: float) -> Rejection | None:
    """Rejection if a share is above its maximum."""
    return Rejection(reason, f"{share:.3f}, at most {maximum:g} expected") if share > maximum else None


def too_few(reason: str, share: float, minimum: float) -> Rejection | None:
    """Rejection if a share is below its minimum."""
    return Rejection(reason, f"{share:.3f}, at least {minimum:g} expected") if share < minimum else None


def first_rejection(rules: Callable[[str, S], Iterable[Rejection | None]]) -> Callable[[str, S], Rejection | None]:
    """Decorator of a generator of rules, which yield a rejection or None; the rules after the first one do not run."""

    @functools.wraps(rules)
    def run(text: str, settings: S) -> Rejection | None:
        return next((found for found in rules(text, settings) if found is not None), None)

    return run


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
