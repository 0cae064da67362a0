"""Quality rules of Gopher (Rae et al. 2021, appendix A1.1): is this running text at all?

Words are what stands between white space; lines are what stands between line ends, empty ones left out.
"""

from collections.abc import Iterator

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.found import Found, first, too_few, too_many

BULLETS = ("•", "-")
ELLIPSES = ("...", "…")


class GopherSettings(Settings):
    """Gopher's rules of quality."""

    use: bool = False
    """Whether they apply."""
    min_words: int = Field(50, ge=0)
    """Fewest words."""
    max_words: int = Field(100_000, ge=1)
    """Most words."""
    min_word_length: float = Field(3, ge=0)
    """Shortest mean length of a word, characters."""
    max_word_length: float = Field(10, ge=0)
    """Longest mean length of a word, characters."""
    max_symbols: float = Field(0.1, ge=0)
    """Most # a word, and most ellipses a word."""
    max_bullet_lines: float = Field(0.9, ge=0, le=1)
    """Largest share of lines that begin with a bullet or a hyphen."""
    max_ellipsis_lines: float = Field(0.3, ge=0, le=1)
    """Largest share of lines that end with an ellipsis."""
    min_letter_words: float = Field(0.8, ge=0, le=1)
    """Smallest share of words with a letter in them."""
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    """Words that any English text has, in lower case."""
    min_stop_words: int = Field(2, ge=0)
    """Fewest different stop words."""


def gopher(text: str, settings: GopherSettings) -> Found | None:
    """The first of Gopher's rules of quality that a text does not pass.

    Reasons: `gopher_few_words`, `gopher_many_words`, `gopher_short_words`, `gopher_long_words`, `gopher_hashes`,
    `gopher_ellipses`, `gopher_bullet_lines`, `gopher_ellipsis_lines`, `gopher_words_without_letters`,
    `gopher_few_stop_words`.
    """
    return first(_rules(text, settings))


def _rules(text: str, settings: GopherSettings) -> Iterator[Found | None]:
    words = text.split()
    count = len(words)
    if count < settings.min_words or not words:
        yield Found("gopher_few_words", f"{count} words, at least {settings.min_words} expected")
        return
    if count > settings.max_words:
        yield Found("gopher_many_words", f"{count} words, at most {settings.max_words} expected")
    mean = sum(map(len, words)) / count
    yield too_few("gopher_short_words", mean, settings.min_word_length)
    yield too_many("gopher_long_words", mean, settings.max_word_length)
    yield too_many("gopher_hashes", text.count("#") / count, settings.max_symbols)
    yield too_many("gopher_ellipses", sum(map(text.count, ELLIPSES)) / count, settings.max_symbols)
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    yield too_many(
        "gopher_bullet_lines", sum(line.startswith(BULLETS) for line in lines) / len(lines), settings.max_bullet_lines
    )
    yield too_many(
        "gopher_ellipsis_lines",
        sum(line.endswith(ELLIPSES) for line in lines) / len(lines),
        settings.max_ellipsis_lines,
    )
    letters = sum(word.isalpha() or any(map(str.isalpha, word)) for word in words)
    yield too_few("gopher_words_without_letters", letters / count, settings.min_letter_words)
    known = len(set(settings.stop_words).intersection(map(str.lower, words)))
    if known < settings.min_stop_words:
        yield Found("gopher_few_stop_words", f"{known} of them, at least {settings.min_stop_words} expected")
