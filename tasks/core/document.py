"""Id and text of a document, as every source of documents gives them."""

import hashlib
import re

SURROGATES = re.compile(r"[\ud800-\udfff]")


def document_id(url: str, text: str) -> str:
    """Id of a document: BLAKE2b-128 of `url`, a line feed and the extracted text, in hex."""
    return hashlib.blake2b(f"{url}\n{text}".encode(), digest_size=16).hexdigest()


def strip_unstorable(text: str) -> str:
    """Remove characters that Arrow or tokenizers reject: NUL and lone surrogates."""
    return SURROGATES.sub("", text.replace("\0", ""))
