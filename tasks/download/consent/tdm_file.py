"""Rules of /.well-known/tdmrep.json, the file of the TDM Reservation Protocol (https://www.w3.org/2022/tdmrep/).

Of several rules that match a URL, the longest counts, as in robots.txt, and of two equally long ones the reservation.
A file that breaks the protocol reserves nothing, as the protocol says; most servers answer with a page of their own.
"""

import json
from typing import Any

from tasks.download.consent.path_pattern import encoded, matches

PATH = "/.well-known/tdmrep.json"
MAX_FILE = 500 * 1024  # bytes; a longer file is not read
MAX_RULES, MAX_PATTERN = 2000, 2000


class TdmRules:
    """The rules of one file, given as text."""

    def __init__(self, text: str) -> None:
        self._rules = sorted(_rules(text), key=lambda rule: (-len(rule[0]), not rule[1]))

    def __bool__(self) -> bool:
        return bool(self._rules)

    def reserves(self, path: str) -> bool | None:
        """Return the reservation of a URL, given by its encoded path and query; None if no rule matches."""
        return next((reserved for pattern, reserved in self._rules if matches(pattern, path)), None)


def _rules(text: str) -> list[tuple[str, bool]]:
    """Parse a file into (pattern, is reserved) pairs; entries that break the protocol are left out."""
    try:
        entries: Any = json.loads(text) if text.lstrip("\ufeff \t\r\n").startswith("[") else []
    except (ValueError, RecursionError):
        return []
    rules = []
    for entry in entries[:MAX_RULES]:
        if not isinstance(entry, dict):
            continue
        location, stated = entry.get("location"), entry.get("tdm-reservation")
        is_stated = isinstance(stated, int | str) and not isinstance(stated, bool) and str(stated) in ("0", "1")
        if isinstance(location, str) and location.startswith(("/", "*")) and len(location) < MAX_PATTERN and is_stated:
            rules.append((encoded(location), str(stated) == "1"))
    return rules
