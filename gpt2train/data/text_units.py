r"""Units of a text: words; in scripts without spaces between words, single characters; in Tibetan, syllables.

Rules that count words count units, so that they measure a Chinese or Thai text by its characters and not by its
sentences or lines. Tibetan has no spaces between words either, but a mark (tsheg) after each syllable. A text without
such characters has the units that `str.split` returns, as in Korean and Vietnamese, which have spaces.

The compiled kernels of the deduplication and the decontamination split texts by the same characters, and Tibetan at its
marks.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

# Letters and digits in these blocks (their first and last code points) are units of their own. A character of the
# first group is roughly a word or a syllable, one of the second group a sound.
IDEOGRAPHIC = (
    (0x3005, 0x3007),  # iteration mark, closing mark, zero of Han
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3031, 0x3035),  # kana repeat marks
    (0x3038, 0x303C),
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3100, 0x312F),  # Bopomofo
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),  # Katakana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA000, 0xA48F),  # Yi
    (0xF900, 0xFAFF),  # Han, compatibility
    (0xFF66, 0xFF9F),  # Katakana of half width
    (0x17000, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # kana, Nushu
    (0x20000, 0x3FFFF),  # Han
)
ALPHABETIC = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0xA980, 0xA9FF),  # Javanese, Myanmar
    (0xAA60, 0xAADF),  # Myanmar, Tai Viet
    (0x11700, 0x1174F),  # Ahom
)
BLOCKS = (*IDEOGRAPHIC, *ALPHABETIC)
SYLLABIC = ((0x0F00, 0x0FFF),)  # Tibetan

# Marks that end a sentence, those of Armenian, Arabic, Urdu, the languages of India and Ethiopia among them.
STOPS = ".!?։؟۔।॥።፧"
UNSPACED_STOPS = "。．！？｡។៕။།"  # that stand without a space; full width and half width, Khmer, Burmese, Tibetan
QUOTES = "\"'”’»」』"  # that close a quotation
# A full stop inside a name (os.path) ends none.
SENTENCE_END = rf"[{STOPS}][{QUOTES})\]]*(?=\s|\Z)|[{STOPS[3:]}{UNSPACED_STOPS}]+[{QUOTES})\]）]*"


def letters_in(blocks: Sequence[tuple[int, int]]) -> re.Pattern[str]:
    """Pattern of one letter or digit in some blocks."""
    return re.compile(rf"(?=\w)[{_ranges(blocks)}]")


def _ranges(blocks: Sequence[tuple[int, int]]) -> str:
    """Blocks inside the brackets of a regular expression."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in blocks)


UNSPACED = letters_in(BLOCKS)
SIGN_BLOCKS = (range(0x300, 0x34F), range(0x350, 0xD800))  # of modern scripts; without variation selectors
SYLLABLE_LETTER = letters_in(SYLLABIC)
_TOKEN = re.compile(r"\S+")
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]+")  # soft hyphen, zero-width space, word joiner, byte order mark
_SEPARATED = re.compile(f"[{_ranges((*ALPHABETIC, *SYLLABIC))}]")
_TIBETAN_MARK = (
    "[\u0f18\u0f19\u0f35\u0f37\u0f39\u0f3e\u0f3f\u0f71-\u0f84\u0f86\u0f87\u0f8d-\u0fbc\u0fc6]"  # within a syllable
)
_UNSPACED_OR_SYLLABLE = re.compile(f"{UNSPACED.pattern}|{SYLLABLE_LETTER.pattern}")
_OTHER_BLOCKS = re.compile("[^\x00-\u0dff\u2000-\u2fff]")  # quick test: Latin, Cyrillic, Arabic …; quotes and dashes
_UNIT = re.compile(
    rf"[^\w\s]*{UNSPACED.pattern}[^\w\s]*"
    rf"|[^\w\s]*{SYLLABLE_LETTER.pattern}(?:{SYLLABLE_LETTER.pattern}|{_TIBETAN_MARK})*[^\w\s]*"
    rf"|(?:(?!{_UNSPACED_OR_SYLLABLE.pattern})\S)+"
)


@functools.cache
def spaced_word() -> str:
    r"""Regular expression of a word of a script with spaces between words: letters, digits and the signs within words.

    Python's `\w` lacks vowel signs, points and accents (Mc, Mn): by it a word of Hindi is two, one of Tamil four.
    """
    spaced = re.sub(f"[{_ranges(BLOCKS)}]", "", signs())
    return rf"(?:[0-9A-Z_a-z]++|[^\W{_ranges(BLOCKS)}]++|[{spaced}]++)++"


@functools.cache
def signs() -> str:
    """Vowel signs, points and accents of all scripts, which are written with a letter."""
    codes = (code for block in SIGN_BLOCKS for code in block)
    return "".join(chr(code) for code in codes if unicodedata.category(chr(code)) in ("Mc", "Mn"))


def has_unspaced(text: str) -> bool:
    """Return True if a text has a letter of a script without spaces between words."""
    found = None if text.isascii() else _OTHER_BLOCKS.search(text)
    return found is not None and _UNSPACED_OR_SYLLABLE.search(text, found.start()) is not None


def is_mostly_unspaced(text: str) -> bool:
    """Return True if more than half of the letters and digits of a text are of `BLOCKS`."""
    return has_unspaced(text) and 2 * len(UNSPACED.findall(text)) > len(re.findall(r"\w", text))


def units_of(text: str) -> list[str]:
    """Split a text at white space, around the letters of scripts without spaces between words, and after syllables.

    Punctuation and combining marks belong to the unit before them, an opening quote to the one after it: together the
    units are the text without its white space.
    """
    if not has_unspaced(text):
        return text.split()
    return [unit for word in text.split() for unit in ([word] if word.isascii() else _UNIT.findall(word))]


def unit_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each unit of `units_of` in a text."""
    return [found.span() for found in (_UNIT if has_unspaced(text) else _TOKEN).finditer(text)]


def without_invisible(text: str) -> str:
    """Remove characters that no reader sees, but for zero-width spaces that separate words (Khmer, Thai, Burmese)."""
    return _INVISIBLE.sub(_separator, text)


def _separator(found: re.Match[str]) -> str:
    (start, end), text = found.span(), found.string
    is_between = bool(start and _SEPARATED.match(text, start - 1) and _SEPARATED.match(text, end))
    return "\u200b" if is_between and "\u200b" in found[0] else ""
