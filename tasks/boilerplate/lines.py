"""Lines of texts, their hashes, and the hashes that many documents of a host have."""

import hashlib
import re
from collections.abc import Collection, Iterator

BLANK_LINES = re.compile(r"\n{3,}")
LETTER_CHARACTERS = 100  # of a line, in which letters are counted


def hash_of(text: str) -> int:
    """63-bit hash of a text, so that it is a positive int64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def candidates(text: str, host: str, min_letters: int) -> Iterator[tuple[int, str, int]]:
    """Yield index, text and hash of each line that may be removed; white space does not distinguish lines."""
    for index, raw in enumerate(text.split("\n")):
        if len(raw) >= min_letters:
            line = " ".join(raw.split())
            if sum(map(str.isalpha, line[:LETTER_CHARACTERS])) >= min_letters:
                yield index, line, hash_of(f"{host}\n{line}")


def without_lines(text: str, indices: Collection[int]) -> str:
    """Text without the lines with these indices; the blank lines around them are joined."""
    left = [line for index, line in enumerate(text.split("\n")) if index not in indices]
    return BLANK_LINES.sub("\n\n", "\n".join(left)).strip()
