"""Passages of a text: runs of sentences that end with a word that occurs in the passage before."""

from collections.abc import Iterator
from typing import NamedTuple

from gpt2train.data.text_units import is_mostly_unspaced, units_of
from tasks.cloze import spaced, unspaced


class Passage(NamedTuple):
    """Passage with its span of characters in the document.

    `text` has no final full stop, and single spaces; in scripts without spaces between words, none.
    """

    start: int
    end: int
    text: str


def passages(text: str, min_words: int, max_words: int) -> Iterator[Passage]:
    """Non-overlapping passages of a text from left to right; each is the shortest suitable run of sentences.

    Words are the units of `gpt2train.data.text_units`: characters in scripts without spaces between words.
    """
    without_spaces = is_mostly_unspaced(text)
    kind = unspaced if without_spaces else spaced
    split = units_of if without_spaces else str.split
    for run in kind.prose_runs(text):
        sentences = [split(text[start:end]) for start, end in run]
        first = 0
        while first < len(run):
            words: list[str] = []
            for last in range(first, len(run)):
                words += sentences[last]
                if len(words) > max_words:
                    first += 1
                    break
                if len(words) >= min_words and kind.is_cloze(words):
                    passage = ("" if without_spaces else " ").join(words)
                    yield Passage(run[first][0], run[last][1], passage.rstrip(kind.STOPS))
                    first = last + 1
                    break
            else:
                first += 1
