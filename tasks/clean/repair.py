"""Text as it was meant: mojibake mended by ftfy, and nothing left that no file or tokenizer takes.

ftfy takes 190 µs for a review of 1,300 characters and changes almost none: it looks eight times for what is hardly
ever there. Here two cheap looks come first, and what they find unchanged never reaches ftfy. Tests hold the outcome
equal to ftfy's, character by character.
"""

import re
import unicodedata

import ftfy
from ftfy import TextFixerConfig, chardata

from tasks.html import storable

# All but printable ASCII, tab, line end, form feed, and eight signs that alone never make ftfy see mojibake: the space
# that does not break, en and em dash, four curly quotes, bullet, ellipsis.
ODD = re.compile(r"[^\t\n\f\x20-\x7e\u00a0\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026]")
ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")  # as ftfy looks for them
STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
# What ftfy replaces wherever it stands: ligatures, full width, control characters, rare quotes, line ends, surrogates.
REPLACED = re.compile(
    "[{}\u02bc\u201a-\u201b\u201e-\u201f\r\u2028\u2029\x7f-\x9f\ud800-\udfff]".format(
        "".join(
            re.escape(chr(code)) for code in sorted({*chardata.LIGATURES, *chardata.WIDTH_MAP, *chardata.CONTROL_CHARS})
        )
    )
)
LINE = re.compile(r"[^\n]*\n|[^\n]+")


def repair(text: str, *, straight_quotes: bool = True) -> str:
    """Mend mojibake and the like (ftfy.fix_text), remove NUL, lone surrogates and white space at line ends."""
    fixed = fix_text(text, straight_quotes=straight_quotes)
    return "\n".join([line.rstrip(" \t\u00a0") for line in storable(fixed).split("\n")]).strip()


def fix_text(text: str, *, straight_quotes: bool = True) -> str:
    """`ftfy.fix_text(text, uncurl_quotes=straight_quotes)`, which fixes line by line, faster."""
    fixed = easy(text, straight_quotes)
    if fixed is not None:
        return fixed
    config = TextFixerConfig(uncurl_quotes=straight_quotes, explain=False)
    lines = []
    for line in LINE.findall(text):
        fixed = easy(line, straight_quotes)
        if fixed is None:
            fixed = unharmed(line, straight_quotes)
        lines.append(ftfy.fix_text(line, config) if fixed is None else fixed)
        if config.unescape_html and "<" in line:  # from the first tag on, ftfy takes entities for part of the text
            config = config._replace(unescape_html=False)
    return "".join(lines)


def easy(text: str, straight_quotes: bool) -> str | None:
    """What ftfy makes of a text of letters and signs that it never touches; None where there are others."""
    if ODD.search(text) or ("&" in text and ENTITY.search(text)):
        return None
    return text.translate(STRAIGHT) if straight_quotes and not text.isascii() else text


def unharmed(line: str, straight_quotes: bool) -> str | None:
    """What ftfy makes of a line in which nothing is to be replaced and nothing looks like mojibake; None elsewhere."""
    if REPLACED.search(line) or ("&" in line and ENTITY.search(line)) or ftfy.is_bad(line):
        return None
    fixed = line.translate(STRAIGHT) if straight_quotes else line
    if not unicodedata.is_normalized("NFC", fixed) or (fixed != line and ftfy.is_bad(fixed)):
        return None
    return fixed


def is_mended(before: str, after: str) -> bool:
    """Whether a text looked like mojibake and does no more."""
    return before != after and bool(ODD.search(before)) and bool(ftfy.is_bad(before)) and not ftfy.is_bad(after)
