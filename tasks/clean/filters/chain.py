"""All the opt-in rules, in FineWeb's order."""

from typing import NamedTuple

from gpt2train.settings import Settings
from tasks.clean.filters.c4 import C4Settings, c4
from tasks.clean.filters.cleanup import CleanupSettings, cleanup
from tasks.clean.filters.fineweb import FineWebSettings, fineweb
from tasks.clean.filters.found import Found
from tasks.clean.filters.gopher import GopherSettings, gopher
from tasks.clean.filters.pii import PiiSettings, mask
from tasks.clean.filters.repetition import RepetitionSettings, repetition


class FilterSettings(Settings):
    """Opt-in rules about the quality of a text; none applies unless it is asked for."""

    cleanup: CleanupSettings = CleanupSettings()
    """Tasks of Megatron's second cleaning."""
    repetition: RepetitionSettings = RepetitionSettings()
    """Gopher's rules of repetition."""
    gopher: GopherSettings = GopherSettings()
    """Gopher's rules of quality."""
    c4: C4Settings = C4Settings()
    """C4's rules."""
    fineweb: FineWebSettings = FineWebSettings()
    """FineWeb's rules."""
    pii: PiiSettings = PiiSettings()
    """Masks for addresses of persons."""


class Filtered(NamedTuple):
    """What the rules make of a text."""

    text: str
    """The text as they leave it."""
    found: Found | None
    """Why it goes; None where it stays."""
    masked: int
    """Addresses that got a placeholder."""


def apply(text: str, language: str | None, settings: FilterSettings) -> Filtered:
    """Put a text through the rules that are in use; the first that it does not pass ends the work on it.

    Args:
        text: repaired.
        language: its code, for the one rule that asks.
        settings: the rules.
    """
    text, found = cleanup(text, language, settings.cleanup)
    if not found and settings.repetition.use:
        found = repetition(text, settings.repetition)
    if not found and settings.gopher.use:
        found = gopher(text, settings.gopher)
    if not found and settings.c4.use:
        text, found = c4(text, settings.c4)
    if not found and settings.fineweb.use:
        found = fineweb(text, settings.fineweb)
    if found:
        return Filtered(text, found, 0)
    text, masked = mask(text, settings.pii)
    return Filtered(text, None, masked)
