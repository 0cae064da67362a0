"""Text repair: fix mojibake with ftfy, remove characters that files or tokenizers reject.

ftfy takes 190 µs for a review of 1,300 characters and changes almost none: it searches eight times for rare defects.
Here two cheap tests run first, and text that passes them is not given to ftfy. Tests compare the result with that of
ftfy, character by character.

Punctuation of full width and curly quotes are the usual ones of Chinese and Japanese: texts and lines mostly in scripts
without spaces between words keep them.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain, groupby

import ftfy
from ftfy import TextFixerConfig, chardata

from gpt2train.data.text_units import has_unspaced, is_mostly_unspaced
from tasks.core.document import strip_unstorable, trim

# All but printable ASCII, tab, line end, form feed, and characters that alone are never mojibake for ftfy: no-break
# space, en and em dash, four curly quotes, bullet, ellipsis.
ODD = re.compile(r"[^\t\n\f\x20-\x7e\u00a0\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026]")
ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")  # the pattern of ftfy
STRAIGHT_QUOTES = (("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"'))


def _replaced(*codes: Iterable[int]) -> re.Pattern[str]:
    """Pattern of characters that ftfy always replaces: these, rare quotes, line ends, surrogates."""
    escaped = "".join(re.escape(chr(code)) for code in sorted(set(chain(*codes))))
    return re.compile(f"[{escaped}\u02bc\u201a-\u201b\u201e-\u201f\r\u2028\u2029\x7f-\x9f\ud800-\udfff]")


REPLACED = _replaced(chardata.LIGATURES, chardata.WIDTH_MAP, chardata.CONTROL_CHARS)
REPLACED_BUT_WIDTH = _replaced(chardata.LIGATURES, chardata.CONTROL_CHARS)
# The middle of ASCII text. The patterns of ftfy's heuristic have up to 6 characters, at least one of them not ASCII.
AWAY = re.compile(r"(?<=[\0-\x7f]{8})[\0-\x7f]+(?=[\0-\x7f]{8})")
LINE = re.compile(r"[^\n]*\n|[^\n]+")
# Ends of words in capitals that ftfy takes for mojibake, and are none: it makes MAÇû of «MAÇÃ», LIBERTɹ of LIBERTÉ¹.
# What follows closes a quotation of the line, is the number of a note, or a no-break space.
QUOTED = "|".join(
    rf"{opening}[^{opening}{closing}\n]*[A-Z][\u00c0-\u00de]?[\u00c2-\u00df](?={closing}(?!\w))"
    for opening, closing in ("«»", "»«", "“”", "„“", "‘’", "‚‘", "‹›", "›‹")
)
NOTED = r"[A-Z]{2}[\u00c8-\u00df](?=[¹²³](?!\w))"
SPACED = r"[A-Z][A-Z\u00c0-\u00de][\u00c3\u00c8-\u00df](?=\u00a0)"
CAPITALS = re.compile(f"{QUOTED}|{NOTED}|{SPACED}")
ACCENTED = re.compile("[\u00c2-\u00df]")  # few texts have one; `CAPITALS` takes a quarter of the time
JOINER = "\u2060"  # ftfy leaves it in its place


def repair(text: str, *, straight_quotes: bool = True, entities: bool = True) -> str:
    """Fix mojibake (`ftfy.fix_text`), remove NUL, lone surrogates and white space at line ends.

    `entities`: replace `&lt;` and the like, which are wanted in a text that an HTML parser has read already.
    """
    text = text.replace("\v", "\n")  # a line end of word processors, which ftfy drops
    is_shielded = not text.isascii() and JOINER not in text and ACCENTED.search(text) is not None
    text = CAPITALS.sub(rf"\g<0>{JOINER}", text) if is_shielded else text
    fixed = ""
    for is_unspaced, run in _runs(text):
        quotes = straight_quotes and not is_unspaced
        fixed += fix_text(run, straight_quotes=quotes, keep_width=is_unspaced, entities=entities)
        entities = entities and "<" not in run  # as in `fix_text`
    fixed = fixed.replace(JOINER, "") if is_shielded else fixed
    return trim("\n".join([line.rstrip(" \t\u00a0") for line in strip_unstorable(fixed).split("\n")]))


def _runs(text: str) -> Iterator[tuple[bool, str]]:
    """Yield runs of lines of a text, and True for those that are mostly in scripts without spaces between words."""
    if (is_unspaced := is_mostly_unspaced(text)) or not has_unspaced(text):
        yield is_unspaced, text
        return
    for is_unspaced, lines in groupby(LINE.findall(text), is_mostly_unspaced):
        yield is_unspaced, "".join(lines)


def fix_text(text: str, *, straight_quotes: bool = True, keep_width: bool = False, entities: bool = True) -> str:
    """Faster equivalent of `ftfy.fix_text`, which fixes line by line.

    Args:
        text: any text.
        straight_quotes: ftfy's `uncurl_quotes`.
        keep_width: the opposite of ftfy's `fix_character_width`.
        entities: ftfy's `unescape_html`, "auto" or off.
    """
    fixed = fix_simple_text(text, straight_quotes, entities)
    if fixed is not None:
        return fixed
    config = TextFixerConfig(
        unescape_html="auto" if entities else False,
        uncurl_quotes=straight_quotes,
        fix_character_width=not keep_width,
        explain=False,
    )
    lines = []
    for line in LINE.findall(text):
        fixed = fix_simple_text(line, straight_quotes, entities)
        if fixed is None:
            fixed = fix_clean_line(line, straight_quotes, keep_width, entities)
        lines.append(ftfy.fix_text(line, config) if fixed is None else fixed)
        if config.unescape_html and "<" in line:  # from the first tag on, ftfy leaves entities as they are
            config = config._replace(unescape_html=False)
    return "".join(lines)


def fix_simple_text(text: str, straight_quotes: bool, entities: bool = True) -> str | None:
    """Result of ftfy for a text of characters that it never changes; None for other texts."""
    if ODD.search(text) or (entities and "&" in text and ENTITY.search(text)):
        return None
    return straighten(text) if straight_quotes and not text.isascii() else text


def straighten(text: str) -> str:
    """Replace curly quotes by straight ones, at least fifty times as fast as `str.translate`."""
    for curly, straight in STRAIGHT_QUOTES:
        text = text.replace(curly, straight)
    return text


def fix_clean_line(line: str, straight_quotes: bool, keep_width: bool = False, entities: bool = True) -> str | None:
    """Result of ftfy for a line without mojibake and without characters to replace; None for other lines."""
    replaced = REPLACED_BUT_WIDTH if keep_width else REPLACED
    if replaced.search(line) or (entities and "&" in line and ENTITY.search(line)) or is_bad(line):
        return None
    fixed = straighten(line) if straight_quotes else line
    if not unicodedata.is_normalized("NFC", fixed) or (fixed != line and is_bad(fixed)):
        return None
    return fixed


def is_bad(text: str) -> bool:
    """Return `ftfy.is_bad` of a text, ten times as fast if it is mostly ASCII."""
    return bool(ftfy.is_bad(AWAY.sub("", text)))


def is_repaired(before: str, after: str) -> bool:
    """Returns True if a text contained mojibake before the repair and does not after it."""
    return before != after and bool(ODD.search(before)) and is_bad(before) and not is_bad(after)
