"""FineWeb's own rules (Penedo et al. 2024, section 3.6): lists, menus and repeated lines."""

from collections.abc import Iterator

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.found import Found, first, repeated, too_few, too_many

ENDS = tuple(".!?\"'”’。！？…")


class FineWebSettings(Settings):
    """FineWeb's rules."""

    use: bool = False
    """Whether they apply."""
    min_ended_lines: float = Field(0.12, ge=0, le=1)
    """Smallest share of lines that end with a mark that ends sentences."""
    short_line: int = Field(30, ge=0)
    """A line of at most so many characters is short."""
    max_short_lines: float = Field(0.67, ge=0, le=1)
    """Largest share of short lines."""
    max_repeated_characters: float = Field(0.01, ge=0, le=1)
    """Largest share of characters in lines that were there before."""
    max_lines_a_word: float = Field(0.3, ge=0)
    """Most line ends a word."""


def fineweb(text: str, settings: FineWebSettings) -> Found | None:
    """The first of FineWeb's rules that a text does not pass.

    Reasons: `fineweb_few_ended_lines`, `fineweb_short_lines`, `fineweb_repeated_lines`, `fineweb_list`.
    """
    return first(_rules(text, settings))


def _rules(text: str, settings: FineWebSettings) -> Iterator[Found | None]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return
    ended = sum(line.endswith(ENDS) for line in lines) / len(lines)
    yield too_few("fineweb_few_ended_lines", ended, settings.min_ended_lines)
    short = sum(len(line) <= settings.short_line for line in lines) / len(lines)
    yield too_many("fineweb_short_lines", short, settings.max_short_lines)
    characters = len(text) - text.count("\n")
    yield too_many("fineweb_repeated_lines", repeated(lines)[1] / characters, settings.max_repeated_characters)
    yield too_many("fineweb_list", text.count("\n") / len(text.split()), settings.max_lines_a_word)
