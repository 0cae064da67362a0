"""The passages of a cloze set in LAMBADA's format: reading them, and what word counts alone make of them. No torch."""

import json
import math
from collections import Counter
from collections.abc import Sequence

from gpt2train.errors import UserError

LAMBADA = 5153  # passages of LAMBADA's test set


def read_passages(data: bytes, name: str) -> list[str]:
    """Passages of a file of `{"text": …}` lines, in order; empty lines are passed over.

    Raises:
        UserError: a line is not such an object, or there is no passage; the message names file and line.
    """
    passages = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            if isinstance(text, str):
                text.encode()  # half of a surrogate pair is valid JSON and no text
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f'{name} line {number}: expected {{"text": "…"}}; mend or remove the line') from error
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{name} line {number}: the text is empty or is no string; mend or remove the line")
        passages.append(text)
    if not passages:
        raise UserError(f'{name} holds no passage; expected one {{"text": "…"}} a line')
    return passages


def unigram_perplexity(passages: Sequence[str]) -> float:
    """Word perplexity of the targets under word counts of the contexts (add-one), which know no order of words."""
    split = [text.split() for text in passages]
    counts = Counter(word for words in split for word in words[:-1])
    total = sum(counts.values()) + len(counts) + 1  # + 1: a share for all words never seen
    return math.exp(-sum(math.log((counts[words[-1]] + 1) / total) for words in split) / len(split))
