r"""Folding of words for comparison, so that a passage is found in any typography.

A letter is compared after NFKC and casefold, without accents, as the Latin letter that it looks like. Both texts are
folded in the same way, so Russian and Greek texts still match each other. Invisible characters and additions are
ignored: soft hyphens, zero-width characters, combining accents, superscript digits.

| written | compared as |
|---|---|
| `Ｈａｒｂｏｕｒ`, `𝐡𝐚𝐫𝐛𝐨𝐮𝐫`, `HARBOUR` | harbour |
| `har\u00adbour`, `har\u200bbour`, `harbour²` | harbour |
| `hаrbоur` with two Cyrillic letters, `ΝΕW` with two Greek ones, `ﬁ` as one letter | harbour, new, fi |
| `يك`, `یـک` as in Persian; `१९८४` | یک; 1984 |
| `_harbour_`, `harbourʼs` | harbour; harbour, s |
"""

import functools
import re
import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt2train.data.text_units import IDEOGRAPHIC, UNSPACED, letters_in, spaced_word

CODE_POINTS = 0x110000
IGNORED, LETTER = 1, 2  # kinds of a character: 0 separates words, IGNORED is skipped, LETTER and above are letters
SINGLE, SEVERAL = 1 << 30, 1 << 31  # flags: the letter is a word of its own; the value is an offset in `forms`
COUNT_BITS = 5

# Letters that look like a Latin letter, in lower case (compare Unicode's confusables); Arabic ones in Persian texts.
LOOKALIKES = str.maketrans(
    "авекмнорстухгіјѕһԁԛԝӏѵү" + "αβεζικορτχνηυμγω" + "օոսհցօ" + "ıɑɡ" + "يىك" + "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "abekmhopctyxrijshdqwlvy" + "abezikoptxvnumyw" + "onuhgo" + "iag" + "ییک" + "abcdefghijklmnoprstuvwyz",
)
# Capitals that look like another Latin letter than their lower-case forms. With this rule a Latin word with such a
# letter is found; a Greek word that is in capitals in only one of the texts is not.
CAPITALS = str.maketrans("ΗΝΥ", "HNY")
TATWEEL = "\u0640"  # stretches Arabic words, and is a letter to Python
SEPARATORS = "_\u02bb\u02bc"  # match `\w`, but are marks of emphasis and apostrophes
UNCHANGED = re.compile(  # Han, Yi, Hangul, Tangut: compared unchanged
    "[\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48f\uac00-\ud7a3\U00017000-\U00018cff\U00020000-\U000323af]+"
)
# Words of their own. Not Thai and the like: 13 of their letters are a common phrase. Vowel signs, which are no letters,
# divide their texts into runs, 13 of which have 70 letters in Thai; 13 English words have 63.
IDEOGRAPH = letters_in(IDEOGRAPHIC)
WORD = re.compile(rf"{UNSPACED.pattern}|{spaced_word()}")


class Letters(NamedTuple):
    """Folding tables of the kernel."""

    kinds: npt.NDArray[np.uint32]
    """[code points] 0, IGNORED, LETTER + the folded code point, or SEVERAL with an offset and a count in `forms`."""
    forms: npt.NDArray[np.uint32]  # LETTER + code point of each letter of the folded forms with several letters


@functools.cache
def letters() -> Letters:
    """Tables for the Unicode version of this Python: 50 ms once per process, 4.5 MB."""
    kinds = np.zeros(CODE_POINTS, dtype=np.uint32)
    forms: list[int] = []
    every = "".join(map(chr, [*range(0xD800), *range(0xF900, 0x32400), *range(0xE0000, 0xE0200)]))
    for found in UNCHANGED.finditer(every):
        codes = [ord(letter) for letter in found[0] if letter.isalnum()]
        kinds[codes] = np.array(codes, dtype=np.uint32) + LETTER
    rest = UNCHANGED.sub("", every)
    for letter in "".join(WORD.findall(rest)):
        form = unicodedata.normalize("NFD", folded.__wrapped__(letter))  # a vowel sign may be written as two
        if len(form) == 1:
            kinds[ord(letter)] = ord(form) + LETTER
        elif form:
            kinds[ord(letter)] = SEVERAL | len(forms) << COUNT_BITS | len(form)
            forms += [ord(part) + LETTER for part in form]
    for letter in rest:
        kind = unicodedata.category(letter)
        if kind in ("Cf", "No", "Lm", "Mn", "Mc", "Me") and is_ignored(letter):
            kinds[ord(letter)] = IGNORED
    for letter in IDEOGRAPH.findall(every):
        if LETTER <= kinds[ord(letter)] < SINGLE:
            kinds[ord(letter)] |= SINGLE
    return Letters(kinds, np.array(forms, dtype=np.uint32))


def is_ignored(letter: str) -> bool:
    """Returns True for a character that is invisible or an addition to the one before it."""
    kind = unicodedata.category(letter)
    superscript = kind == "No" and unicodedata.decomposition(letter).startswith("<super>")
    return (
        kind == "Cf"
        or superscript
        or unicodedata.combining(letter) > 0
        or "\ufe00" <= letter <= "\ufe0f"
        or letter == TATWEEL
    )


@functools.lru_cache(maxsize=1 << 16)
def folded(text: str) -> str:
    """Folded form of a word."""
    if text.isascii():
        return "".join(filter(str.isalnum, text)).lower()
    seen = "".join(letter for letter in text if letter not in SEPARATORS and not is_ignored(letter))
    capitals = unicodedata.normalize("NFKD", seen).translate(CAPITALS)
    plain = unicodedata.normalize("NFKD", capitals.casefold()).casefold()
    bare = "".join(
        str(unicodedata.decimal(letter)) if letter.isdecimal() else letter
        for letter in plain
        if not unicodedata.combining(letter)
    )
    return "".join(WORD.findall(unicodedata.normalize("NFC", bare).translate(LOOKALIKES)))
