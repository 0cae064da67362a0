"""Text repair: fix mojibake with ftfy, remove characters that files or tokenizers reject.

ftfy takes 190 µs for a review of 1,300 characters and changes almost none: it searches eight times for rare defects.
Here two cheap tests run first, and text that passes them is not given to ftfy. Tests compare the result with that of
ftfy, character by character.
"""

import re
import unicodedata

import ftfy
from ftfy import TextFixerConfig, chardata

from tasks.core.document import strip_unstorable

# All but printable ASCII, tab, line end, form feed, and characters that alone are never mojibake for ftfy: no-break
# space, en and em dash, four curly quotes, bullet, ellipsis.
ODD = re.compile(r"[^\t\n\f\x20-\x7e\u00a0\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026]")
ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")  # the pattern of ftfy
STRAIGHT_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
# Characters that ftfy always replaces: ligatures, full width, control characters, rare quotes, line ends, surrogates.
REPLACED = re.compile(
    "[{}\u02bc\u201a-\u201b\u201e-\u201f\r\u2028\u2029\x7f-\x9f\ud800-\udfff]".format(
        "".join(
            re.escape(chr(code)) for code in sorted({*chardata.LIGATURES, *chardata.WIDTH_MAP, *chardata.CONTROL_CHARS})
        )
    )
)
LINE = re.compile(r"[^\n]*\n|[^\n]+")


def repair(text: str, *, straight_quotes: bool = True) -> str:
    """Fix mojibake (`ftfy.fix_text`), remove NUL, lone surrogates and white space at line ends."""
    fixed = fix_text(text, straight_quotes=straight_quotes)
    return "\n".join([line.rstrip(" \t\u00a0") for line in strip_unstorable(fixed).split("\n")]).strip()


def fix_text(text: str, *, straight_quotes: bool = True) -> str:
    """Faster equivalent of `ftfy.fix_text(text, uncurl_quotes=straight_quotes)`, which fixes line by line."""
    fixed = fix_simple_text(text, straight_quotes)
    if fixed is not None:
        return fixed
    config = TextFixerConfig(uncurl_quotes=straight_quotes, explain=False)
    lines = []
    for line in LINE.findall(text):
        fixed = fix_simple_text(line, straight_quotes)
        if fixed is None:
            fixed = fix_clean_line(line, straight_quotes)
        lines.append(ftfy.fix_text(line, config) if fixed is None else fixed)
        if config.unescape_html and "<" in line:  # from the first tag on, ftfy leaves entities as they are
            config = config._replace(unescape_html=False)
    return "".join(lines)


def fix_simple_text(text: str, straight_quotes: bool) -> str | None:
    """Result of ftfy for a text of characters that it never changes; None for other texts."""
    if ODD.search(text) or ("&" in text and ENTITY.search(text)):
        return None
    return text.translate(STRAIGHT_QUOTES) if straight_quotes and not text.isascii() else text


def fix_clean_line(line: str, straight_quotes: bool) -> str | None:
    """Result of ftfy for a line without mojibake and without characters to replace; None for other lines."""
    if REPLACED.search(line) or ("&" in line and ENTITY.search(line)) or ftfy.is_bad(line):
        return None
    fixed = line.translate(STRAIGHT_QUOTES) if straight_quotes else line
    if not unicodedata.is_normalized("NFC", fixed) or (fixed != line and ftfy.is_bad(fixed)):
        return None
    return fixed


def is_repaired(before: str, after: str) -> bool:
    """Returns True if a text contained mojibake before the repair and does not after it."""
    return before != after and bool(ODD.search(before)) and bool(ftfy.is_bad(before)) and not ftfy.is_bad(after)
