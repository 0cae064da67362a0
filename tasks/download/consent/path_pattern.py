"""Patterns of URL paths as in robots.txt: a prefix, with `*` for any characters and `$` for the end."""

from urllib.parse import quote

_PLAIN = "/%*$?=&;:@!,+~'()-._#"


def encoded(pattern: str) -> str:
    """Percent-encode a pattern as URLs are, so that both can be compared."""
    return quote(pattern, safe=_PLAIN)


def matches(pattern: str, path: str) -> bool:
    """Return True if a pattern matches the path and query of a URL, both encoded; in linear time."""
    anchored = pattern.endswith("$")
    first, *rest = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    if not rest:
        return not anchored or path == first
    at = len(first)
    for part in rest[:-1]:
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    if anchored:
        return path.endswith(rest[-1]) and len(path) - len(rest[-1]) >= at
    return path.find(rest[-1], at) >= 0
