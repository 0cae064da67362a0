"""Rules of FineWeb (Penedo et al. 2024, section 3.6) against lists, menus and repeated lines."""

from collections.abc import Iterator

from pydantic import Field

from gpt2train.data.text_units import QUOTES, STOPS, UNSPACED_STOPS, units_of
from gpt2train.settings import Settings
from tasks.clean.filters.registry import TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection, first_rejection, repeated, too_few, too_many

ENDS = (*STOPS, *UNSPACED_STOPS, *QUOTES, "…")


class FineWebSettings(Settings):
    """Rules of FineWeb."""

    enabled: bool = False
    """Apply these rules."""
    min_ended_lines: float = Field(0.12, ge=0, le=1)
    """Minimum share of lines that end with the punctuation of a sentence."""
    short_line: int = Field(30, ge=0)
    """Maximum characters of a short line."""
    max_short_lines: float = Field(0.67, ge=0, le=1)
    """Maximum share of short lines."""
    max_repeated_characters: float = Field(0.01, ge=0, le=1)
    """Maximum share of characters in repeated lines."""
    max_lines_a_word: float = Field(0.3, ge=0)
    """Maximum line ends per word, or per character in scripts without spaces between words."""


@first_rejection
def fineweb(text: str, settings: FineWebSettings) -> Iterator[Rejection | None]:
    """Rejection by the first rule of FineWeb that a text does not pass.

    Reasons: `fineweb_few_ended_lines`, `fineweb_short_lines`, `fineweb_repeated_lines`, `fineweb_list`.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return
    ended = sum(line.endswith(ENDS) for line in lines) / len(lines)
    yield too_few("fineweb_few_ended_lines", ended, settings.min_ended_lines)
    short = sum(len(line) <= settings.short_line for line in lines) / len(lines)
    yield too_many("fineweb_short_lines", short, settings.max_short_lines)
    characters = len(text) - text.count("\n")
    yield too_many("fineweb_repeated_lines", repeated(lines)[1] / characters, settings.max_repeated_characters)
    yield too_many("fineweb_list", text.count("\n") / len(units_of(text)), settings.max_lines_a_word)


register_filter("fineweb", TextFilter(FineWebSettings, fineweb, order=500))
