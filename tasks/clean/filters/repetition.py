"""Repetition rules of Gopher (Rae et al. 2021, table A1): repeated lines, paragraphs and word n-grams.

Words are separated by white space, and are single characters in scripts without spaces between words; shares are
relative to the characters of the text. Unlike in the paper, an n-gram that occurs once never counts as repetition,
however short the text.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import Field, field_validator

from gpt2train.data.text_units import has_unspaced, units_of
from gpt2train.settings import Settings
from tasks.clean.filters.registry import TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection, first_rejection, repeated, too_many

Limits = tuple[tuple[int, float], ...]  # (words of an n-gram, maximum share)


class RepetitionSettings(Settings):
    """Repetition rules of Gopher."""

    enabled: bool = False
    """Apply these rules."""
    lines: float = Field(0.30, ge=0, le=1)
    """Maximum share of repeated lines."""
    paragraphs: float = Field(0.30, ge=0, le=1)
    """Maximum share of repeated paragraphs; an empty line separates paragraphs."""
    line_characters: float = Field(0.20, ge=0, le=1)
    """Maximum share of characters in repeated lines."""
    paragraph_characters: float = Field(0.20, ge=0, le=1)
    """Maximum share of characters in repeated paragraphs."""
    top: Limits = ((2, 0.20), (3, 0.18), (4, 0.16))
    """(words of an n-gram, maximum share of characters of the most frequent one) pairs."""
    repeated: Limits = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    """(words of an n-gram, maximum share of characters in repeated ones) pairs."""

    @field_validator("top", "repeated")
    @classmethod
    def _positive(cls, limits: Limits) -> Limits:
        if any(size < 1 for size, _ in limits):
            raise ValueError("an n-gram has at least 1 word")
        return tuple(sorted(limits))


@first_rejection
def repetition(text: str, settings: RepetitionSettings) -> Iterator[Rejection | None]:
    """Rejection by the first repetition rule of Gopher that a text does not pass.

    Reasons: `gopher_repeated_paragraphs`, `gopher_repeated_paragraph_characters`, `gopher_repeated_lines`,
    `gopher_repeated_line_characters`, `gopher_top_2_gram` …, `gopher_repeated_5_grams` ….
    """
    size = len(text)
    if not size:
        return
    paragraphs = [stripped for part in text.split("\n\n") if (stripped := part.strip("\n"))]
    count, characters = repeated(paragraphs)
    yield too_many("gopher_repeated_paragraphs", count / max(len(paragraphs), 1), settings.paragraphs)
    yield too_many("gopher_repeated_paragraph_characters", characters / size, settings.paragraph_characters)
    lines = [line for line in text.split("\n") if line]
    count, characters = repeated(lines)
    yield too_many("gopher_repeated_lines", count / max(len(lines), 1), settings.lines)
    yield too_many("gopher_repeated_line_characters", characters / size, settings.line_characters)
    words = units_of(text)
    for length, most in settings.top:
        yield too_many(f"gopher_top_{length}_gram", top_characters(words, length) / size, most)
    for length, most in settings.repeated:
        found = repeated_characters(words, length)
        if not found:  # no n-gram is repeated, so no longer one is
            return
        yield too_many(f"gopher_repeated_{length}_grams", found / size, most)


def top_characters(words: Sequence[str], length: int) -> int:
    """Characters (with spaces before words) of the most frequent n-gram, times its occurrences; 0 if it occurs once."""
    counts = Counter(grams(words, length))
    most = max(counts.values(), default=0)
    if most < 2:
        return 0
    frequent = [gram for gram, count in counts.items() if count == most]
    return most * max(sum(map(len, gram)) + length - 1 - sum(map(has_unspaced, gram[1:])) for gram in frequent)


def repeated_characters(words: Sequence[str], length: int) -> int:
    """Characters (without spaces) in repeated n-grams, each counted once."""
    windows = list(grams(words, length))
    if len(set(windows)) == len(windows):  # holds for most texts; a tenth of the time of the loop below
        return 0
    seen: set[tuple[str, ...]] = set()
    characters = index = 0
    while index < len(windows):
        if windows[index] in seen:
            characters += sum(map(len, windows[index]))
            index += length
        else:
            seen.add(windows[index])
            index += 1
    return characters


def grams(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    """All n-grams of `length` words, in order."""
    return zip(*(words[start:] for start in range(length)), strict=False)


register_filter("repetition", TextFilter(RepetitionSettings, repetition, order=200))
