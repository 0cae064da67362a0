"""Repetition rules of Gopher (Rae et al. 2021, table A1): lines, paragraphs and word n-grams that come again.

Words are what stands between white space; shares are of the characters of the text. Unlike in the paper an n-gram that
occurs once repeats nothing, however short the text.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import Field, field_validator

from gpt2train.settings import Settings
from tasks.clean.filters.found import Found, first, repeated, too_many

Limits = tuple[tuple[int, float], ...]  # (words of an n-gram, largest share)


class RepetitionSettings(Settings):
    """Gopher's rules of repetition."""

    use: bool = False
    """Whether they apply."""
    lines: float = Field(0.30, ge=0, le=1)
    """Largest share of lines that were there before."""
    paragraphs: float = Field(0.30, ge=0, le=1)
    """Largest share of paragraphs that were there before; an empty line parts them."""
    line_characters: float = Field(0.20, ge=0, le=1)
    """Largest share of characters in such lines."""
    paragraph_characters: float = Field(0.20, ge=0, le=1)
    """Largest share of characters in such paragraphs."""
    top: Limits = ((2, 0.20), (3, 0.18), (4, 0.16))
    """Words of an n-gram, and the largest share of characters that the most frequent one may have."""
    repeated: Limits = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    """Words of an n-gram, and the largest share of characters in n-grams that were there before."""

    @field_validator("top", "repeated")
    @classmethod
    def _positive(cls, limits: Limits) -> Limits:
        if any(size < 1 for size, _ in limits):
            raise ValueError("an n-gram has at least 1 word")
        return tuple(sorted(limits))


def repetition(text: str, settings: RepetitionSettings) -> Found | None:
    """The first of Gopher's rules of repetition that a text does not pass.

    Reasons: `gopher_repeated_paragraphs`, `gopher_repeated_paragraph_characters`, `gopher_repeated_lines`,
    `gopher_repeated_line_characters`, `gopher_top_2_gram` …, `gopher_repeated_5_grams` ….
    """
    return first(_rules(text, settings)) if text else None


def _rules(text: str, settings: RepetitionSettings) -> Iterator[Found | None]:
    size = len(text)
    paragraphs = [stripped for part in text.split("\n\n") if (stripped := part.strip("\n"))]
    count, characters = repeated(paragraphs)
    yield too_many("gopher_repeated_paragraphs", count / max(len(paragraphs), 1), settings.paragraphs)
    yield too_many("gopher_repeated_paragraph_characters", characters / size, settings.paragraph_characters)
    lines = [line for line in text.split("\n") if line]
    count, characters = repeated(lines)
    yield too_many("gopher_repeated_lines", count / max(len(lines), 1), settings.lines)
    yield too_many("gopher_repeated_line_characters", characters / size, settings.line_characters)
    words = text.split()
    for length, most in settings.top:
        yield too_many(f"gopher_top_{length}_gram", top_characters(words, length) / size, most)
    for length, most in settings.repeated:
        found = repeated_characters(words, length)
        if not found:  # no n-gram comes again, so no longer one does
            return
        yield too_many(f"gopher_repeated_{length}_grams", found / size, most)


def top_characters(words: Sequence[str], length: int) -> int:
    """Characters (with single spaces) of the most frequent n-gram, times how often it occurs; 0 if that is once."""
    counts = Counter(grams(words, length))
    most = max(counts.values(), default=0)
    if most < 2:
        return 0
    return most * max(sum(map(len, gram)) + length - 1 for gram, count in counts.items() if count == most)


def repeated_characters(words: Sequence[str], length: int) -> int:
    """Characters (without spaces) in n-grams that were there before, none counted twice."""
    windows = list(grams(words, length))
    if len(set(windows)) == len(windows):  # most texts: a tenth of the time of the walk below
        return 0
    seen: set[tuple[str, ...]] = set()
    characters = place = 0
    while place < len(windows):
        if windows[place] in seen:
            characters += sum(map(len, windows[place]))
            place += length
        else:
            seen.add(windows[place])
            place += 1
    return characters


def grams(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    """All runs of `length` words, in order."""
    return zip(*(words[start:] for start in range(length)), strict=False)
