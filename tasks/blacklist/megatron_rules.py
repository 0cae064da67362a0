"""Megatron-LM's URL rules with their faults, for comparing counts with an earlier run of `blacklist_urls.py`.

Differences from `rules.py`: `.7z` and `.ai` pass and `.7z.ai` does not; the extension is searched for in everything
before a `?`, including host and fragment; international names, underscores and user names are malformed; only identical
texts are duplicates.
"""

import re

from tasks.blacklist.rules import Rules, make_key, site_name

MAX_TOO_SHORT = 8  # characters
ABSENT, JOINED = (".7z", ".ai"), ".7z.ai"  # a missing comma joins two strings into one
SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
FORM = re.compile(
    rf"https?://(?:(?:{LABEL}\.)+[a-z0-9-]{{2,}}\.?|\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::\d+)?(?:/?|[/?]\S+)",
    re.IGNORECASE,
)


class MegatronClassifier:
    """Classifier of URLs by Megatron-LM's rules, with the interface of `UrlClassifier`."""

    def __init__(self, rules: Rules) -> None:
        self._names = rules.names
        endings = tuple(ending for ending in rules.extensions if ending not in ABSENT)
        self._endings = (*endings, JOINED) if endings else ()

    def __call__(self, url: str) -> tuple[str, str, bytes]:
        """Return (reason, detail, key) by the first rule that matches: domain, extension, length, form."""
        if (name := site_name(_host(url))) and name in self._names:
            return "blacklisted_domain", name, b""
        address = url.partition("?")[0].lower()
        if address.endswith(self._endings):
            return "forbidden_extension", address.rpartition(".")[2], b""
        if len(url) <= MAX_TOO_SHORT:
            return "too_short", f"{len(url)} characters, at least {MAX_TOO_SHORT + 1} expected", b""
        if not FORM.fullmatch(url):
            return "malformed", "not of the form that Megatron-LM expects", b""
        return "", "", make_key(url)


def _host(url: str) -> str:
    """Return the text in the position of the host; a scheme is not required."""
    begin = SCHEME.match(url)
    authority = re.split(r"[/?#]", url[begin.end() if begin else 0 :], maxsplit=1)[0]
    return authority.rpartition("@")[2].partition(":")[0].strip().rstrip(".").lower()
