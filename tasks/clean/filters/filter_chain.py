"""Chain of the opt-in quality filters, in the order of FineWeb."""

from typing import NamedTuple

from gpt2train.settings import Settings
from tasks.clean.filters.c4 import C4Settings, c4
from tasks.clean.filters.cleanup import CleanupSettings, cleanup
from tasks.clean.filters.fineweb import FineWebSettings, fineweb
from tasks.clean.filters.gopher import GopherSettings, gopher
from tasks.clean.filters.pii import PiiSettings, mask
from tasks.clean.filters.repetition import RepetitionSettings, repetition
from tasks.clean.filters.verdict import Rejection


class FilterSettings(Settings):
    """Opt-in quality filters; all are off by default."""

    cleanup: CleanupSettings = CleanupSettings()
    """Cleanup tasks of Megatron-LM."""
    repetition: RepetitionSettings = RepetitionSettings()
    """Repetition rules of Gopher."""
    gopher: GopherSettings = GopherSettings()
    """Quality rules of Gopher."""
    c4: C4Settings = C4Settings()
    """Rules of C4."""
    fineweb: FineWebSettings = FineWebSettings()
    """Rules of FineWeb."""
    pii: PiiSettings = PiiSettings()
    """Masks for personal data."""


class Filtered(NamedTuple):
    """Result of the filters for a text."""

    text: str
    """Text as changed by the filters."""
    found: Rejection | None
    """Rejection of the text; None: it is kept."""
    masked: int
    """Number of addresses replaced by a placeholder."""


def apply(text: str, language: str | None, settings: FilterSettings) -> Filtered:
    """Apply the enabled filters to a text, up to the first that rejects it.

    Args:
        text: repaired.
        language: its code, for the one rule that asks.
        settings: the rules.
    """
    text, found = cleanup(text, language, settings.cleanup)
    if not found and settings.repetition.enabled:
        found = repetition(text, settings.repetition)
    if not found and settings.gopher.enabled:
        found = gopher(text, settings.gopher)
    if not found and settings.c4.enabled:
        text, found = c4(text, settings.c4)
    if not found and settings.fineweb.enabled:
        found = fineweb(text, settings.fineweb)
    if found:
        return Filtered(text, found, 0)
    text, masked = mask(text, settings.pii)
    return Filtered(text, None, masked)
