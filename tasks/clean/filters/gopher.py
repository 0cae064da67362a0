"""Quality rules of Gopher (Rae et al. 2021, appendix A1.1), which reject pages that are not running text.

Words are separated by white space, lines by line ends; empty lines are ignored.
"""

from collections.abc import Iterator

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.registry import TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection, first_rejection, too_few, too_many

BULLETS = ("•", "-")
ELLIPSES = ("...", "…")


class GopherSettings(Settings):
    """Quality rules of Gopher."""

    enabled: bool = False
    """Apply these rules."""
    min_words: int = Field(50, ge=0)
    """Minimum words of a text."""
    max_words: int = Field(100_000, ge=1)
    """Maximum words of a text."""
    min_word_length: float = Field(3, ge=0)
    """Minimum mean length of a word, in characters."""
    max_word_length: float = Field(10, ge=0)
    """Maximum mean length of a word, in characters."""
    max_symbols: float = Field(0.1, ge=0)
    """Maximum number of # per word, and of ellipses per word."""
    max_bullet_lines: float = Field(0.9, ge=0, le=1)
    """Maximum share of lines that begin with a bullet or a hyphen."""
    max_ellipsis_lines: float = Field(0.3, ge=0, le=1)
    """Maximum share of lines that end with an ellipsis."""
    min_letter_words: float = Field(0.8, ge=0, le=1)
    """Minimum share of words that contain a letter."""
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    """Common words of English texts, in lower case."""
    min_stop_words: int = Field(2, ge=0)
    """Minimum number of different stop words."""


@first_rejection
def gopher(text: str, settings: GopherSettings) -> Iterator[Rejection | None]:
    """Rejection by the first quality rule of Gopher that a text does not pass.

    Reasons: `gopher_few_words`, `gopher_many_words`, `gopher_short_words`, `gopher_long_words`, `gopher_hashes`,
    `gopher_ellipses`, `gopher_bullet_lines`, `gopher_ellipsis_lines`, `gopher_words_without_letters`,
    `gopher_few_stop_words`.
    """
    words = text.split()
    count = len(words)
    if count < settings.min_words or not words:
        yield Rejection("gopher_few_words", f"{count} words, at least {settings.min_words} expected")
        return
    if count > settings.max_words:
        yield Rejection("gopher_many_words", f"{count} words, at most {settings.max_words} expected")
    mean = sum(map(len, words)) / count
    yield too_few("gopher_short_words", mean, settings.min_word_length)
    yield too_many("gopher_long_words", mean, settings.max_word_length)
    yield too_many("gopher_hashes", text.count("#") / count, settings.max_symbols)
    yield too_many("gopher_ellipses", sum(map(text.count, ELLIPSES)) / count, settings.max_symbols)
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    bullets = sum(line.startswith(BULLETS) for line in lines)
    yield too_many("gopher_bullet_lines", bullets / len(lines), settings.max_bullet_lines)
    ellipses = sum(line.endswith(ELLIPSES) for line in lines)
    yield too_many("gopher_ellipsis_lines", ellipses / len(lines), settings.max_ellipsis_lines)
    letters = sum(word.isalpha() or any(map(str.isalpha, word)) for word in words)
    yield too_few("gopher_words_without_letters", letters / count, settings.min_letter_words)
    known = len(set(settings.stop_words).intersection(map(str.lower, words)))
    if known < settings.min_stop_words:
        yield Rejection("gopher_few_stop_words", f"{known} of them, at least {settings.min_stop_words} expected")


register_filter("gopher", TextFilter(GopherSettings, gopher, order=300))
