"""Reference of the compiled sketches in plain Python: folding, hashes of words and of shingles."""

import re
from collections.abc import Sequence
from typing import Any

from gpt2train.data.text_units import UNSPACED, spaced_word
from tasks.dedup.unicode_tables import normalise

MASK64, MASK32 = 2**64 - 1, 2**32 - 1
MULTIPLIER = 0x9E3779B97F4A7C15
WORD = re.compile(rf"{UNSPACED.pattern}|{spaced_word()}")


def folded(text: str) -> str:
    """Normalised text with white space collapsed to single spaces; equal ones are exact duplicates."""
    return " ".join(normalise(text).split())


def unit_hashes(text: str, words: bool) -> list[int]:
    """64-bit hash of each word or character of a text."""
    if not words:
        return [fmix64((ord(letter) + MULTIPLIER) & MASK64) for letter in text]
    return [word_hash(word.encode()) for word in WORD.findall(text)]


def word_hash(word: bytes) -> int:
    """64-bit hash of a word, computed from eight bytes at a time and the length."""
    total, whole = 0, len(word) // 8 * 8
    for start in range(0, whole, 8):
        total = (total ^ int.from_bytes(word[start : start + 8], "big")) * MULTIPLIER & MASK64
        total ^= total >> 33
    return fmix64(((total ^ int.from_bytes(word[whole:], "big")) * MULTIPLIER + len(word)) & MASK64)


def shingle_hashes(text: str, words: bool, ngram: int) -> list[int]:
    """Hashes of all runs of `ngram` units in order, including repeated ones."""
    return ngram_hashes(unit_hashes(text, words), ngram)


def ngram_hashes(units: Sequence[int], ngram: int) -> list[int]:
    """Hashes of all runs of `ngram` hashed units."""
    result = []
    for start in range(len(units) - ngram + 1):
        total = 0
        for unit in units[start : start + ngram]:
            total = (total * MULTIPLIER + unit) & MASK64
        result.append(fmix64(total))
    return result


def fmix64(number: Any) -> Any:
    """MurmurHash3's 64-bit finaliser, of an int or of an array of uint64."""
    number = number ^ number >> 33
    number = number * 0xFF51AFD7ED558CCD & MASK64
    number = number ^ number >> 33
    number = number * 0xC4CEB9FE1A85EC53 & MASK64
    return number ^ number >> 33
