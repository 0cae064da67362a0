"""Patterns of URL paths as in robots.txt: a prefix, with `*` for any characters and `$` for the end."""

import re
import string
from urllib.parse import quote

_PLAIN = "/%*$?=&;:@!,+~'()-._#"
_ENCODED = re.compile("%([0-9a-fA-F]{2})")
# What the library that encodes the URLs leaves as it is, in a path and in a query, but for `*` and `$`.
_IN_PATH = string.ascii_letters + string.digits + "-._~!&'(),:;=@"
_IN_QUERY = string.ascii_letters + string.digits + "-._~!'(),/:?@"


def encoded(pattern: str) -> str:
    """Percent-encode a pattern as URLs are, so that both can be compared."""
    path, mark, query = quote(pattern, safe=_PLAIN).partition("?")
    return _normalised(path, _IN_PATH) + mark + _normalised(query, _IN_QUERY)


def _normalised(text: str, plain: str) -> str:
    return _ENCODED.sub(lambda found: one if (one := chr(int(found[1], 16))) in plain else found[0].upper(), text)


def matches(pattern: str, path: str) -> bool:
    """Return True if a pattern matches the path and query of a URL, both encoded; in linear time.

    The characters `*` and `$` of a URL are matched by `%2A` and `%24`, or by a wildcard (RFC 9309, 2.2.3).
    """
    anchored = pattern.endswith("$")
    path = path.replace("*", "%2A").replace("$", "%24")
    first, *rest = pattern.removesuffix("$").replace("$", "%24").split("*")
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
