"""Meta tags in the head of a page, read as browsers prescan it: from its bytes, without a tree."""

import html
import re
from collections.abc import Iterator

HEAD_BYTES = 2**16  # within which a tag counts
PRESCANNED = 1024  # bytes in which browsers look for tags even in the body

_UNREAD = re.compile(
    rb"<!--.*?(?:-->|\Z)|<(script|style|title|template|noscript)\b.*?(?:</\1\b|\Z)", re.IGNORECASE | re.DOTALL
)
_HEAD_END = re.compile(rb"</head\b|<body\b", re.IGNORECASE)
_TAG = re.compile(rb"<(meta|base)[\s/]([^>]{0,2000})", re.IGNORECASE)
_ATTRIBUTE = re.compile(rb"([^\s/>=\"']+)\s*(?:=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+)))?")


def meta_tags(body: bytes) -> Iterator[dict[str, str]]:
    """Attributes of each meta tag, by their names in lower case; bytes that are not UTF-8 are surrogates.

    `base` is the address of the first `base` before the tag.
    """
    if b"<meta" not in body[:HEAD_BYTES].lower():
        return
    head = _UNREAD.sub(b" ", body[:HEAD_BYTES])
    if end := _HEAD_END.search(head, PRESCANNED):
        head = head[: end.start()]
    base = ""
    for tag in _TAG.finditer(head):
        attributes: dict[str, str] = {}
        for name, *values in _ATTRIBUTE.findall(tag[2]):
            text = html.unescape(b"".join(values).decode("utf-8", "surrogateescape"))
            attributes.setdefault(name.lower().decode("latin-1"), text)
        if tag[1].lower() == b"meta":
            yield attributes | {"base": base}
        base = base or attributes.get("href", "")
