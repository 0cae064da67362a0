"""Difference of two texts, word by word."""

import difflib
import re

from gpt2train.data.text_units import UNSPACED

MAX_WORDS = 6000  # of each text; with more, the comparison takes seconds
# White space, a sign, a letter of a script without spaces between words, or a word.
WORD = re.compile(rf"\s+|[^\s\w]|{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\w)+")


def difference(a: str, b: str) -> dict[str, object]:
    """Pieces of both texts in order, each with `same`, `removed` (in `a` alone) or `added` (in `b` alone)."""
    first, second = (WORD.findall(text) for text in (a, b))
    cut = max(len(first), len(second)) > MAX_WORDS
    first, second = first[:MAX_WORDS], second[:MAX_WORDS]
    pieces: list[tuple[str, str]] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, first, second).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(first[i:j])))
            continue
        for name, words in (("removed", first[i:j]), ("added", second[k:m])):
            if words:
                pieces.append((name, "".join(words)))
    same = sum(len(text) for kind, text in pieces if kind == "same")
    return {"pieces": pieces, "cut": cut, "same": same}
