"""Prose sentences and targets of texts in scripts with spaces between words.

A corpus may contain code as well as prose. A sentence of prose begins with a capital, or with a letter of a script
without capitals, ends with a full stop and has few words that are not plain.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from gpt2train.data.text_units import STOPS

TOKEN = re.compile(r"\S+")
# Letters and combining marks of all scripts, by blocks without the commas and full stops in them.
LETTER = (
    r"[A-Za-z\u00c0-\u0588\u058a-\u060b\u060d-\u061a\u0620-\u06d3\u06d5-\u0963\u0966-\u1361\u1363-\u1366\u1368-\u1fff"
    r"\u2c00-\u2dff\u3040-\ud7ff\uf900-\ufdff]"
)
OPENERS, CLOSERS = "\"'“‘„«(", "\"'”’“»)"
# A plain word or number with its punctuation, or a dash.
PLAIN_WORD = re.compile(
    rf"[{OPENERS}]*(?:{LETTER}+(?:['’/-]{LETTER}+)*|\d+(?:[.,]\d+)*%?)[{CLOSERS}]*[,;:،؛{STOPS}]*[{CLOSERS}]*"
    r"|--|–|—|e\.g\.,?|i\.e\.,?"
)
# Tokens that do not occur in prose: tables, rules, operators, markup, dunder names, signatures, bullets, endless words.
NOT_PROSE = re.compile(r".*(?:[|=<>{}\\#@~^]|->|::|\.\.\.|__|---|\w\([^)]).*|[-•+·*]|async|def|class|\S{50,}")
MAX_WORD = 50  # characters, as above
SENTENCE_END = re.compile(rf".*[{STOPS}][{CLOSERS}]*")
ABBREVIATION = re.compile(r"[\"'“(]*(?:e\.g|i\.e|etc|vs|cf|[Dd]r|[Mm]rs?|[Ff]ig|[Nn]o|[Ss]t)\.", re.ASCII)
# Most words of at most three letters are function words; a word of two syllables in Hangul is a long one.
TARGET = re.compile(rf"({LETTER}{{4,}}|[가-힣]{{2,}})[{STOPS}]")
WORD = re.compile(rf"{LETTER}+")
MAX_ODD_SHARE = 0.25  # maximum share of words in a sentence that are not plain, e.g. ``names`` of code
MAX_HEADING = (
    60  # characters; a line that ends without punctuation before a capital is a heading, longer ones are prose
)
SENTENCE_WORDS = (3, 50)  # minimum and maximum words of a sentence


def is_cloze(words: Sequence[str]) -> bool:
    """Return True if the last word is a target: letters, a full stop, and an earlier occurrence in the passage."""
    target = TARGET.fullmatch(words[-1])
    if target is None:
        return False
    target_word = target.group(1).lower()
    return any(target_word in WORD.findall(word.lower()) for word in words[:-1])


class _Kind(NamedTuple):
    """Role of a token in its sentence."""

    is_prose: bool
    is_plain: bool
    ends: bool  # the sentence, if a token that `opens` follows
    opens: bool  # a sentence, or ends it, because it is not prose


ENDLESS = _Kind(is_prose=False, is_plain=False, ends=False, opens=True)


@functools.lru_cache(maxsize=1 << 16)  # words repeat: texts take half to five sixths of the time
def _kind(token: str) -> _Kind:
    is_prose = NOT_PROSE.fullmatch(token) is None
    ends = SENTENCE_END.fullmatch(token) is not None and ABBREVIATION.fullmatch(token) is None
    return _Kind(is_prose, PLAIN_WORD.fullmatch(token) is not None, ends, opens_sentence(token) or not is_prose)


def prose_runs(text: str) -> list[list[tuple[int, int]]]:
    """Runs of consecutive prose sentences; each sentence as its (start, end) in the text."""
    runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    number, start, odd, count = 0, -1, 0, 0
    tokens = list(TOKEN.finditer(text))
    kinds = [_kind(found.group()) if found.end() - found.start() < MAX_WORD else ENDLESS for found in tokens]
    for index, found in enumerate(tokens):
        kind = kinds[index]
        if not kind.is_prose:
            number, start = number + 1, -1  # neither this sentence nor one that spans the token is prose
            continue
        if start < 0:
            start, odd, count = found.start(), 0, 0
        count += 1
        odd += not kind.is_plain
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        opens = following is None or kinds[index + 1].opens
        if kind.ends and opens:
            sentence = text[start : found.end()]
            if SENTENCE_WORDS[0] <= count <= SENTENCE_WORDS[1] and odd <= MAX_ODD_SHARE * count and is_whole(sentence):
                runs[number].append((start, found.end()))
            else:
                number += 1
            start = -1
        elif following is not None and opens and "\n" in text[found.end() : following.start()]:
            line = found.end() - (text.rfind("\n", 0, found.end()) + 1)
            if line <= MAX_HEADING and found.group()[-1] not in ",;:":
                number, start = number + 1, -1
    return [runs[key] for key in sorted(runs)]


def opens_sentence(text: str) -> bool:
    """Return True if a text begins with a capital, or a letter of a script without capitals, after opening quotes."""
    first = text.lstrip(OPENERS)[:1]
    return first.isalpha() and not first.islower()


def is_whole(sentence: str) -> bool:
    """Return True if a sentence begins as one and has balanced brackets and quotes."""
    return opens_sentence(sentence) and all(
        sentence.count(left) == sentence.count(right) for left, right in ("()", "[]", "“”", "«»")
    )
