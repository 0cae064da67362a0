"""Language of a document, decided by the share of its whole text that is in the kept languages.

A manual page may begin with a synopsis, and a partly translated page with a paragraph in another language. The text is
cut into consecutive pieces of some 250 characters, which end with a line. The share is that of the kept languages in
the letters of the pieces whose language is certain. Most documents are in one language: 4 to 8 evenly spaced samples of
100 characters that agree stand for the whole, at a tenth of the time.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from gpt2train.data.text_units import signs
from tasks.clean.language import (
    LANGDETECT_LANGUAGES,
    LanguageSettings,
    certain_language,
    certainty,
    decide,
    detect_with_langdetect,
    ranking,
    sample_text,
    windows,
)
from tasks.core.document import trim

MIN_SAMPLES, MAX_SAMPLES = 4, 8  # samples of a text that is tested for being in one language
SAMPLE_CHARACTERS = 100
CHARACTERS_PER_SAMPLE = 2000  # of the text
MIN_AGREEING = 3 / 4  # share of the samples that are certain, and agree
ASCII_OTHERS = bytes(code for code in range(128) if not chr(code).isalpha())
MIN_LETTERS = 1 / 3  # share of letters of a usable piece; tables of numbers have a fifth
MIN_MIXED, MAX_MIXED = 0.001, 0.999  # probability of the kept languages in a piece whose lines may be in several
MIN_SCRIPT = 0.1  # share of the letters of a piece that are ASCII, or are not, if its lines may be in two scripts
MIN_LINE = 30  # characters of a line that is tested by itself
MIN_CUT_PIECES = 2  # a single piece may be a list of names or a quotation


class TextLanguage(NamedTuple):
    """Language of a document."""

    language: str | None
    """ISO 639 code of most of the kept part, or of most of the others if the document is dropped; None: no letters."""
    share: float  # share of the text in the kept languages, 0 to 1


class Piece(NamedTuple):
    """Consecutive part of a text."""

    text: str
    letters: int
    language: str | None  # ISO 639 code; None if it is not certain


def detect(text: str, settings: LanguageSettings) -> TextLanguage:
    """Find the language of a document, and the share of the kept languages in it."""
    if settings.detector == "langdetect":
        return _whole(detect_with_langdetect(text, settings), settings)
    if found := detect_by_pieces(text, settings):
        return found
    guesses = ranking(sample_text(text, settings))
    decided = decide(guesses, settings, final=True)
    if decided or LANGDETECT_LANGUAGES.isdisjoint(settings.keep):
        return _whole((decided or guesses[0]).language, settings)
    return _whole(detect_with_langdetect(text, settings), settings)


def detect_by_pieces(text: str, settings: LanguageSettings) -> TextLanguage | None:
    """Find the language and the share by samples that agree, or else by pieces; None if none of them is certain."""
    if len(text) < 2 * settings.window:
        decided = decide(ranking(text), settings)
        return decided and _whole(decided.language, settings)
    is_long = len(text) >= MIN_SAMPLES * settings.window
    if is_long and not settings.cut_foreign and (language := language_of_samples(text, settings)):
        return _whole(language, settings)
    spans = list(split_pieces(text, settings.window))
    count = len(spans)
    if count > settings.windows and not settings.cut_foreign:
        spans = [spans[number * (count - 1) // (settings.windows - 1)] for number in range(settings.windows)]
    return share_of([part for span in spans for part in classify_lines(span, settings)], settings)


def language_of_samples(text: str, settings: LanguageSettings) -> str | None:
    """Return the first sample's language if the samples agree whether the text is kept; None if they do not."""
    count = min(MAX_SAMPLES, max(MIN_SAMPLES, len(text) // CHARACTERS_PER_SAMPLE))
    languages: list[str] = []
    for number, sample in enumerate(windows(text, count, SAMPLE_CHARACTERS), start=1):
        if language := classify_piece(sample, settings).language:
            languages.append(language)
            if (languages[0] in settings.keep) != (languages[-1] in settings.keep):
                return None
        if number - len(languages) > (1 - MIN_AGREEING) * count:
            return None
    return max(languages, key=languages.count)


def split_pieces(text: str, size: int) -> Iterator[str]:
    """Yield consecutive pieces of at least `size` and up to three times as many characters; joined, they are the text.

    A piece ends with a line, or after a space if the line is longer than twice the size; without a space, not before
    the sign of a letter.
    """
    start, length = 0, len(text)
    while length - start >= 2 * size:
        end = start + size
        cut = text.find("\n", end, end + size) + 1 or text.find(" ", end, end + size) + 1
        while not cut and end < start + 2 * size and _continues(text, end):
            end += 1
        cut = cut or end
        yield text[start:cut]
        start = cut
    if start < length:
        yield text[start:]


def _continues(text: str, at: int) -> bool:
    """Return True if a character belongs to the one before it: a sign, a joiner or what follows one."""
    return unicodedata.category(text[at])[0] == "M" or "\u200d" in text[at - 1 : at + 1] or text[at] == "\u200c"


def classify_piece(text: str, settings: LanguageSettings) -> Piece:
    """Return a piece with its language, if that is certain."""
    letters = count_letters(text)
    return Piece(text, letters, certain_language(text, settings) if letters >= MIN_LETTERS * len(text) else None)


def classify_lines(text: str, settings: LanguageSettings) -> list[Piece]:
    """Return a piece with its language, or its long lines with theirs if they are in several languages."""
    letters = count_letters(text)
    if letters < MIN_LETTERS * len(text):
        return [Piece(text, letters, None)]
    language, kept = certainty(text, settings)
    if "\n" in text.rstrip("\n") and (MIN_MIXED < kept < MAX_MIXED or _has_two_scripts(text, letters)):
        lines = [classify_piece(line, settings) for line in text.split("\n") if len(line) >= MIN_LINE]
        if len({line.language for line in lines if line.language}) > 1:
            return lines
    return [Piece(text, letters, language)]


def count_letters(text: str) -> int:
    """Count the letters of a text, and their signs: of Hindi and Burmese these are half of what an alphabet writes."""
    if text.isascii():  # a tenth of the time
        return len(text.encode().translate(None, ASCII_OTHERS))
    pattern = _signs()
    return sum(map(str.isalpha, text)) + (len(pattern.findall(text)) if pattern.search(text) else 0)


@functools.cache
def _signs() -> re.Pattern[str]:
    return re.compile(f"[{signs()}]")


def _has_two_scripts(text: str, letters: int) -> bool:
    """Return True if a text has letters of ASCII and others, a tenth of each or more."""
    if text.isascii():
        return False
    return MIN_SCRIPT < count_letters(text.encode("ascii", "ignore").decode()) / letters < 1 - MIN_SCRIPT


def share_of(pieces: list[Piece], settings: LanguageSettings) -> TextLanguage | None:
    """Return the language of pieces and the share of the kept ones; None if no piece is certain."""
    letters: dict[str, int] = {}
    for piece in pieces:
        if piece.language and piece.letters:
            letters[piece.language] = letters.get(piece.language, 0) + piece.letters
    if not letters:
        return None
    share = sum(count for language, count in letters.items() if language in settings.keep) / sum(letters.values())
    kept = share >= settings.share
    language = max((one for one in letters if (one in settings.keep) == kept), key=lambda one: letters[one])
    return TextLanguage(language, round(share, 4))


def cut_foreign(text: str, settings: LanguageSettings) -> tuple[str, int]:
    """Remove runs of pieces in other languages from a text, with the uncertain pieces between them.

    Returns:
        The text that is left, and the number of characters removed.
    """
    pieces = [classify_piece(span, settings) for span in split_pieces(text, settings.window)]
    parts: list[str] = []
    start = 0
    while start < len(pieces):
        end = _end_of_foreign(pieces, start, settings)
        if end - start < MIN_CUT_PIECES:
            end = start + 1
            parts.append(pieces[start].text)
        elif parts and not parts[-1].endswith("\n"):
            parts[-1] = parts[-1].rstrip() + "\n"
        start = end
    left = "".join(parts)
    return trim(left), len(text) - len(left)


def _end_of_foreign(pieces: list[Piece], start: int, settings: LanguageSettings) -> int:
    """End (exclusive) of the run that begins with a foreign piece and ends with one; `start` if there is none."""
    end = start
    for at in range(start, len(pieces)):
        language = pieces[at].language
        if language in settings.keep or (at == start and language is None):
            break
        end = end if language is None else at + 1
    return end


def _whole(language: str | None, settings: LanguageSettings) -> TextLanguage:
    return TextLanguage(language, float(language in settings.keep))
