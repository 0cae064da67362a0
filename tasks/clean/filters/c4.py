"""Rules of C4 (Raffel et al. 2020, section 2.2): lines that are no sentences go, and pages that are no text.

The list of bad words is left out: it drops texts about medicine and of minorities (Dodge et al. 2021), and nothing is
fetched here. Sentences are counted by their ends, one a line at least.
"""

import re

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.found import Found

ENDS = (".", "?", "!", '"', "'", "”", "’")
SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s|$)")
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


class C4Settings(Settings):
    """C4's rules."""

    use: bool = False
    """Whether they apply."""
    terminal_punctuation: bool = True
    """Drop lines that do not end like a sentence, or end with three dots. FineWeb turns this off."""
    min_sentences: int = Field(5, ge=0)
    """Fewest sentences in the lines that stay."""
    min_line_words: int = Field(3, ge=0)
    """Lines with fewer words go."""
    max_word_length: int = Field(1000, ge=1)
    """Lines with a longer word go, characters."""
    citations: bool = True
    """Remove marks as [1], [edit] and [citation needed]."""
    lorem_ipsum: bool = True
    """Drop texts that have the words lorem ipsum."""
    curly_bracket: bool = True
    """Drop texts that have a {, as programs do."""
    line_phrases: tuple[str, ...] = (
        "javascript",
        "terms of use",
        "privacy policy",
        "cookie policy",
        "uses cookies",
        "use of cookies",
        "use cookies",
    )
    """Lines with one of these go; in lower case."""


def c4(text: str, settings: C4Settings) -> tuple[str, Found | None]:
    """The lines that stay, and why the text goes if it goes.

    Reasons: `c4_lorem_ipsum`, `c4_curly_bracket`, `c4_few_sentences`.
    """
    if settings.lorem_ipsum and "lorem ipsum" in text.lower():
        return text, Found("c4_lorem_ipsum", "it is a filler")
    if settings.curly_bracket and "{" in text:
        return text, Found("c4_curly_bracket", "it may be a program")
    kept = [line for line in map(str.strip, text.split("\n")) if _stays(line, settings)]
    if settings.citations:
        kept = [CITATION.sub("", line) for line in kept]
    sentences = sum(max(len(SENTENCE_END.findall(line)), 1) for line in kept)
    if sentences < settings.min_sentences:
        return text, Found("c4_few_sentences", f"{sentences} sentences, at least {settings.min_sentences} expected")
    return "\n".join(kept).strip(), None


def _stays(line: str, settings: C4Settings) -> bool:
    words = line.split()
    if len(words) < settings.min_line_words or not words or max(map(len, words)) > settings.max_word_length:
        return False
    if settings.terminal_punctuation:
        end = CITATION.sub("", line) if settings.citations else line
        if not end.endswith(ENDS) or end.endswith("..."):
            return False
    lower = line.lower()
    return not any(phrase in lower for phrase in settings.line_phrases)
