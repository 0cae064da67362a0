"""Quality rules of Gopher (Rae et al. 2021, appendix A1.1), which reject pages that are not running text.

Words are separated by white space, and are single characters in scripts without spaces between words; lines are
separated by line ends, and empty lines are ignored. In a text mostly of such scripts the mean length of a word is not
tested, nor are stop words unless one of `stop_words` is in such a script.
"""

from collections.abc import Iterator

from pydantic import Field

from gpt2train.data.text_units import has_unspaced, units_of
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
    """Common words, by default of English texts, in lower case. Those in a script without spaces between words (的, の)
    are found anywhere in the text."""
    min_stop_words: int = Field(2, ge=0)
    """Minimum number of different stop words."""


@first_rejection
def gopher(text: str, settings: GopherSettings) -> Iterator[Rejection | None]:
    """Rejection by the first quality rule of Gopher that a text does not pass.

    Reasons: `gopher_few_words`, `gopher_many_words`, `gopher_short_words`, `gopher_long_words`, `gopher_hashes`,
    `gopher_ellipses`, `gopher_bullet_lines`, `gopher_ellipsis_lines`, `gopher_words_without_letters`,
    `gopher_few_stop_words`.
    """
    words = units_of(text)
    count = len(words)
    if count < settings.min_words or not words:
        yield Rejection("gopher_few_words", f"{count} words, at least {settings.min_words} expected")
        return
    if count > settings.max_words:
        yield Rejection("gopher_many_words", f"{count} words, at most {settings.max_words} expected")
    spaced = [word for word in words if not has_unspaced(word)] if has_unspaced(text) else words
    is_spaced = 2 * len(spaced) > count
    if is_spaced:
        mean = sum(map(len, spaced)) / len(spaced)
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
    unspaced_stops = {word for word in settings.stop_words if has_unspaced(word)}
    known = len(
        set(settings.stop_words).intersection(map(str.lower, words)).union(filter(text.__contains__, unspaced_stops))
    )
    if known < settings.min_stop_words and (is_spaced or unspaced_stops):
        yield Rejection("gopher_few_stop_words", f"{known} of them, at least {settings.min_stop_words} expected")


register_filter("gopher", TextFilter(GopherSettings, gopher, order=300))
