"""Passages of a cloze set in LAMBADA's format, and their unigram baseline; does not import torch."""

import json
import math
from collections import Counter
from collections.abc import Sequence

from gpt2train.data.text_units import has_unspaced, units_of
from gpt2train.errors import UserError, check_not_packed, check_not_utf16

MAX_LETTERS = 20  # of a last word in a script without spaces between words; no word is as long


def read_passages(data: bytes, name: str) -> list[str]:
    """Read the passages of a file with a JSON object `{"text": …}` per line, in order; empty lines are skipped.

    Raises:
        UserError: a line is not such an object, or there is no passage; the message names file and line.
    """
    check_not_packed(data, name)
    check_not_utf16(data, name)
    passages = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            if isinstance(text, str):
                text.encode()  # a lone surrogate is valid JSON but not valid text
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f'{name} line {number}: expected {{"text": "…"}}; correct or remove the line') from error
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{name} line {number}: the text is empty or not a string; correct or remove the line")
        if " " in text and (letters := len(units_of(text.rpartition(" ")[2]))) > MAX_LETTERS:
            raise UserError(
                f"{name} line {number}: {letters} characters follow the last space, which are no word to predict; put "
                "a space before the last word, or remove all spaces to predict the last character"
            )
        passages.append(text)
    if not passages:
        raise UserError(f'{name} contains no passage; expected one {{"text": "…"}} per line')
    return passages


def last_unit(text: str) -> str | None:
    """Last character of a passage without spaces in a script that has none between words; else None.

    Punctuation and vowel signs belong to it; in Tibetan it is the last syllable.
    """
    return units_of(text)[-1] if " " not in text.strip() and has_unspaced(text) else None


def unigram_perplexity(passages: Sequence[str]) -> float:
    """Return the targets' word perplexity under a unigram model of the contexts' words (add-one smoothing)."""
    split = [text.split() if last_unit(text) is None else units_of(text) for text in passages]
    counts = Counter(word for words in split for word in words[:-1])
    total = sum(counts.values()) + len(counts) + 1  # + 1 for all unseen words
    return math.exp(-sum(math.log((counts[words[-1]] + 1) / total) for words in split) / len(split))
