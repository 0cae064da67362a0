"""Rules of C4 (Raffel et al. 2020, section 2.2): drop lines that are not sentences, and pages that are not text.

The list of bad words is omitted: it drops texts about medicine and of minorities (Dodge et al. 2021), and would have to
be downloaded. Sentences are counted by their ends, at least one per line.
"""

import re

from pydantic import Field

from gpt2train.data.text_units import QUOTES, SENTENCE_END, STOPS, UNSPACED_STOPS, units_of
from gpt2train.settings import Settings
from tasks.clean.filters.registry import Replacement, TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection

ENDS = (*STOPS, *UNSPACED_STOPS, *QUOTES)
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


class C4Settings(Settings):
    """Rules of C4."""

    enabled: bool = False
    """Apply these rules."""
    terminal_punctuation: bool = True
    """Drop lines that do not end like a sentence, or end with three dots. FineWeb turns this off."""
    min_sentences: int = Field(5, ge=0)
    """Minimum sentences in the kept lines."""
    min_line_words: int = Field(3, ge=0)
    """Drop lines with fewer words, or characters in scripts without spaces between words."""
    max_word_length: int = Field(1000, ge=1)
    """Drop lines with a longer word, in characters."""
    citations: bool = True
    """Remove marks such as [1], [edit] and [citation needed]."""
    lorem_ipsum: bool = True
    """Drop texts that contain the words lorem ipsum."""
    curly_bracket: bool = True
    """Drop texts that contain a {, as source code does."""
    line_phrases: tuple[str, ...] = (
        "javascript",
        "terms of use",
        "privacy policy",
        "cookie policy",
        "uses cookies",
        "use of cookies",
        "use cookies",
    )
    """Drop lines that contain one of these phrases; in lower case."""


def c4(text: str, settings: C4Settings) -> Rejection | Replacement:
    """Kept lines of a text, or its rejection if it does not pass.

    Reasons: `c4_lorem_ipsum`, `c4_curly_bracket`, `c4_few_sentences`.
    """
    if settings.lorem_ipsum and "lorem ipsum" in text.lower():
        return Rejection("c4_lorem_ipsum", "it is a filler")
    if settings.curly_bracket and "{" in text:
        return Rejection("c4_curly_bracket", "it may be a program")
    kept = [line for line in map(str.strip, text.split("\n")) if _is_kept(line, settings)]
    if settings.citations:
        kept = [CITATION.sub("", line) for line in kept]
    sentences = sum(max(len(re.findall(SENTENCE_END, line)), 1) for line in kept)
    if sentences < settings.min_sentences:
        return Rejection("c4_few_sentences", f"{sentences} sentences, at least {settings.min_sentences} expected")
    return Replacement("\n".join(kept).strip())


def _is_kept(line: str, settings: C4Settings) -> bool:
    words = units_of(line)
    if len(words) < settings.min_line_words or not words or max(map(len, words)) > settings.max_word_length:
        return False
    if settings.terminal_punctuation:
        end = CITATION.sub("", line) if settings.citations else line
        if not end.endswith(ENDS) or end.endswith("..."):
            return False
    lower = line.lower()
    return not any(phrase in lower for phrase in settings.line_phrases)


register_filter("c4", TextFilter(C4Settings, c4, order=400))
