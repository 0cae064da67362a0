"""Id and text of a document, as every source of documents gives them."""

import hashlib
import re
from collections.abc import Iterable

BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
SURROGATES = re.compile(r"[\ud800-\udfff]")


def document_id(url: str, text: str) -> str:
    """Id of a document: BLAKE2b-128 of `url`, a line feed and the extracted text, in hex."""
    return hashlib.blake2b(f"{url}\n{text}".encode(), digest_size=16).hexdigest()


def strip_unstorable(text: str) -> str:
    """Remove characters that Arrow or tokenizers reject: NUL and lone surrogates."""
    text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return SURROGATES.sub("", text)
    return text


def trim(text: str) -> str:
    """Remove blank lines at the start of a text, and white space at its end; the first line keeps its indentation."""
    return BLANK_LINES.sub("", text.rstrip())


def pieces_between(text: str, cuts: Iterable[tuple[int, int]]) -> list[str]:
    """Rest of a text between cuts, each piece trimmed; one that begins inside a line has no indentation."""
    edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
    pieces = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        is_line = start == 0 or text[start - 1] == "\n"
        pieces.append(trim(text[start:end] if is_line else text[start:end].lstrip(" \t\u00a0\u3000")))
    return pieces
