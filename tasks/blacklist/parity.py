"""Megatron-LM's rules with their faults, for whoever compares counts with an earlier run of `blacklist_urls.py`.

What differs from ours: `.7z` and `.ai` pass and `.7z.ai` does not; the ending is looked for in all that stands before
a `?`, host and fragment included; international names, underscores and user names are malformed; only the very same
text is a repetition.
"""

import re

from tasks.blacklist.rules import Rules, make_key, site_name

SHORT = 8  # characters; so many and fewer are too few
ABSENT, GLUED = (".7z", ".ai"), ".7z.ai"  # a missing comma made one string of two
SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
FORM = re.compile(
    rf"https?://(?:(?:{LABEL}\.)+[a-z0-9-]{{2,}}\.?|\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::\d+)?(?:/?|[/?]\S+)",
    re.IGNORECASE,
)


class MegatronJudge:
    """Gives each URL its verdict, as `Judge` does."""

    def __init__(self, rules: Rules) -> None:
        self._names = rules.names
        endings = tuple(ending for ending in rules.extensions if ending not in ABSENT)
        self._endings = (*endings, GLUED) if endings else ()

    def __call__(self, url: str) -> tuple[str, str, bytes]:
        """(reason, detail, key), by the first rule that hits: domain, extension, length, form."""
        if (name := site_name(_host(url))) and name in self._names:
            return "blacklisted_domain", name, b""
        place = url.partition("?")[0].lower()
        if place.endswith(self._endings):
            return "forbidden_extension", place.rpartition(".")[2], b""
        if len(url) <= SHORT:
            return "too_short", f"{len(url)} characters, at least {SHORT + 1} expected", b""
        if not FORM.fullmatch(url):
            return "malformed", "not of the form that Megatron-LM expects", b""
        return "", "", make_key(url)


def _host(url: str) -> str:
    """What stands where a host does, in any text: no scheme is needed."""
    begin = SCHEME.match(url)
    place = re.split(r"[/?#]", url[begin.end() if begin else 0 :], maxsplit=1)[0]
    return place.rpartition("@")[2].partition(":")[0].strip().rstrip(".").lower()
