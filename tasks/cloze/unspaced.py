"""Sentences and targets of texts in scripts without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese.

No dictionary says where the last word begins. The last characters, as many as a short word has, must occur together
earlier in the passage; the last one of them is the target, as `gpt2train.evaluate.passages` scores a passage without
spaces.
"""

import re
import unicodedata
from collections.abc import Sequence

from gpt2train.data.text_units import IDEOGRAPHIC, UNSPACED, UNSPACED_STOPS, letters_in

STOPS = f"!?{UNSPACED_STOPS}"
BALANCED = ("“”", "‘’", "「」", "『』", "《》", "（）", "()", "[]")
# A sentence up to its stop and closing quotes, or to the end of its line.
SENTENCE = re.compile(rf"\S[^{STOPS}\n]*(?:[{STOPS}]+[”’」』》）\"')]*)?")
PHRASE = re.compile(r"\S+")  # Thai and Lao have no full stop, but a space after a phrase
THAI = letters_in(((0x0E00, 0x0EFF),))
IDEOGRAPH = letters_in(IDEOGRAPHIC)
# Markup, operators and addresses; spaces between words of other scripts, which a passage without spaces would lose.
NOT_PROSE = re.compile(r"[|=<>{}\\#@~^_]|://|[A-Za-z\u00c0-\u0dff\uac00-\ud7ff]\s+[A-Za-z\u00c0-\u0dff\uac00-\ud7ff]")
MAX_ODD_SHARE = 0.25  # maximum share of letters and digits of other scripts in a sentence
SENTENCE_LETTERS = (3, 200)  # minimum and maximum letters of a sentence
WORD_UNITS = {True: 2, False: 4}  # characters of a short word, by whether they are ideographs (or kana)


def is_cloze(units: Sequence[str]) -> bool:
    """Return True if the last units are a word that occurs earlier in the passage, and all quotes are closed."""
    if UNSPACED.search(units[-1]) is None:
        return False
    count = WORD_UNITS[bool(IDEOGRAPH.search(units[-1]))]
    ending = "".join(units[-count:])
    word = ending.rstrip(STOPS)
    if len(ending) - len(word) > 1 or any(unicodedata.category(character)[0] not in "LM" for character in word):
        return False
    text = "".join(units)
    body = text.rstrip(STOPS)
    return word in body[: -len(word)] and all(text.count(pair[0]) == text.count(pair[1]) for pair in BALANCED)


def prose_runs(text: str) -> list[list[tuple[int, int]]]:
    """Runs of consecutive prose sentences; each sentence as its (start, end) in the text."""
    phrases = 2 * len(THAI.findall(text)) > len(UNSPACED.findall(text))
    runs: list[list[tuple[int, int]]] = [[]]
    for found in (PHRASE if phrases else SENTENCE).finditer(text):
        sentence = found.group().rstrip()
        is_ended = phrases or sentence.rstrip("”’」』》）\"')")[-1:] in (*STOPS,)
        if is_ended and is_prose(sentence):
            runs[-1].append((found.start(), found.start() + len(sentence)))
        elif runs[-1]:
            runs.append([])  # a heading, code or a table
    return [run for run in runs if run]


def is_prose(sentence: str) -> bool:
    """Return True if most letters of a sentence are of scripts without spaces, and none of it looks like code."""
    letters, own = len(re.findall(r"\w", sentence)), len(UNSPACED.findall(sentence))
    least, most = SENTENCE_LETTERS
    return least <= letters <= most and letters - own <= MAX_ODD_SHARE * letters and not NOT_PROSE.search(sentence)
