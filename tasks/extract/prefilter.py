"""Cheap prefilter for pages that cleaning would drop, at a twentieth of the cost of the extraction.

It tests the text of the whole page including menus, of which the main text is a part. It rejects a page only if the
whole text cannot have the minimum number of tokens, or no sample of it could be in a kept language. Of 3,679 test pages
in 20 languages it rejects 687, and none of the 2,193 that cleaning keeps.
"""

import html as entities
import re
from collections.abc import Iterator

from tasks.clean.language import ranking
from tasks.extract.settings import PrefilterRules

HIDDEN_ELEMENTS = re.compile(r"<(script|style)\b|<!--", re.IGNORECASE)
END_TAGS = {
    "script": re.compile(r"</script", re.IGNORECASE),
    "style": re.compile(r"</style", re.IGNORECASE),
    None: re.compile("-->"),
}
TAG = re.compile(r"<[^<>]*>")  # stops at the next bracket: many `<` without `>` would take quadratic time
# trafilatura falls back on the texts in these, which the page does not display
EMBEDDED = re.compile(r"ld\+json|data-preloaded", re.IGNORECASE)
SMALL_PAGE = 20_000  # characters of markup; a smaller page is tested for its length, a larger one only sampled
CHARACTERS_PER_TOKEN = 2  # in ASCII; English has 4.3, Polish 2.1. Each byte of other characters may be a token
SAMPLES = 12  # samples of a page
SAMPLE_TEXT = 400  # characters of text per sample
SAMPLE_MARKUP = 3000  # characters of markup from which these are taken
MIN_SAMPLE_TEXT = 100  # a sample with fewer characters is skipped


def prefilter_reason(html: str, wanted: PrefilterRules) -> tuple[str, str] | None:
    """Reason (`early_short`, `early_language`) and detail for a page that cleaning would drop; None for other pages."""
    markup = visible_markup(html)
    text = plain_text(markup) if len(markup) < SMALL_PAGE else None
    if text is not None and (count := max_tokens(text)) < wanted.min_tokens and not EMBEDDED.search(html):
        return "early_short", f"at most {count} tokens on the whole page, at least {wanted.min_tokens} expected"
    if "any" in wanted.languages:
        return None
    found = set()
    for sample in samples(markup, text):
        guesses = ranking(sample[:SAMPLE_TEXT])
        if guesses[0].language is None:
            continue
        if sum(one.probability for one in guesses if one.language in wanted.languages) >= wanted.share:
            return None
        found.add(guesses[0].language)
    if not found:
        return None
    return "early_language", f"found {', '.join(sorted(found))}, expected {' or '.join(wanted.languages)}"


def visible_markup(html: str) -> str:
    """Markup of a page without scripts, styles and comments."""
    parts, at = [], 0
    while hidden := HIDDEN_ELEMENTS.search(html, at):
        parts.append(html[at : hidden.start()])
        kind = hidden.group(1)
        end = END_TAGS[kind and kind.lower()].search(html, hidden.end())
        if end is None:
            return " ".join(parts)
        at = end.end() if kind is None else end.start()
    return " ".join([*parts, html[at:]])


def plain_text(markup: str) -> str:
    """Text of markup: tags removed, entities decoded, white space collapsed."""
    return " ".join(entities.unescape(TAG.sub(" ", markup)).split())


def max_tokens(text: str) -> int:
    """Upper bound of the GPT-2 tokens of a text (exceeded only by hex dumps and the like)."""
    ascii_ = len(text.encode("ascii", "ignore"))
    return ascii_ // CHARACTERS_PER_TOKEN + len(text.encode(errors="replace")) - ascii_ + 1


def samples(markup: str, text: str | None) -> Iterator[str]:
    """Evenly spaced samples of the text of a page, or of its markup if `text` is None; those of the middle first."""
    source, size = (text, SAMPLE_TEXT) if text is not None else (markup, SAMPLE_MARKUP)
    for number in sorted(range(SAMPLES), key=lambda number: abs(2 * number - SAMPLES + 1)):
        if len(source) <= SAMPLES * size:
            start = number * size
        else:
            start = number * (len(source) - size) // (SAMPLES - 1)
        span = source[start : start + size]
        if text is None:
            span = plain_text(span[span.find(">") + 1 if 0 <= span.find(">") < span.find("<") else 0 :])[:SAMPLE_TEXT]
        if len(span) >= MIN_SAMPLE_TEXT:
            yield span
