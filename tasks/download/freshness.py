"""Freshness of a page as its server declares it, by the rules of HTTP caching (RFC 9111, 4.2).

Only what the server states counts: `max-age` or Expires, minus the age of the answer. A lifetime that a cache may guess
from Last-Modified does not, and neither does `s-maxage`, which is for shared caches.
"""

import datetime
import email.utils
import re

from tasks.download.consent.signals import Headers

MAX_DAYS = 30  # of a lifetime: servers state a year for pages that change nonetheless
MAX_VALUE = 1024  # characters of Cache-Control
FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_DIRECTIVE = re.compile(r'([a-z-]+)(?:\s*=\s*("[^"]*"|[^\s,]*))?')
_SECONDS = re.compile("[0-9]{1,10}")


def fresh_until(headers: Headers, now: datetime.datetime) -> str:
    """Return the time (UTC, ISO 8601) until which an answer received now is fresh; empty if it is not.

    Fields that are malformed or contradict each other make it stale.
    """
    directives: dict[str, set[str]] = {}
    stated = ",".join(headers.getall("Cache-Control", []))
    for name, argument in _DIRECTIVE.findall(stated[:MAX_VALUE].lower()):
        directives.setdefault(name, set()).add(argument.strip('"'))
    if (
        len(stated) > MAX_VALUE
        or {"no-store", "no-cache"} & directives.keys()
        or "*" in "".join(headers.getall("Vary", []))
    ):
        return ""
    date = _date(headers, "Date") or now
    ages = set(headers.getall("Age", ["0"]))
    if "max-age" in directives:
        lifetime = _seconds(directives["max-age"])
    else:
        expires = _date(headers, "Expires")
        lifetime = None if expires is None else (expires - date).total_seconds()
    age = _seconds(ages)
    if lifetime is None or age is None:
        return ""
    left = min(lifetime, MAX_DAYS * 86400) - max(age, (now - date).total_seconds())
    return (now + datetime.timedelta(seconds=left)).strftime(FORMAT) if left > 0 else ""


def is_fresh(until: str, now: datetime.datetime) -> bool:
    """Return True before the time that `fresh_until` returned."""
    return now.strftime(FORMAT) < until


def _seconds(values: set[str]) -> float | None:
    """Return the one value in seconds; None if there are several, or it is no number."""
    value = next(iter(values)) if len(values) == 1 else ""
    return float(value) if _SECONDS.fullmatch(value) else None


def _date(headers: Headers, name: str) -> datetime.datetime | None:
    """Return the one date of a field; None without one, or if it is malformed."""
    values = headers.getall(name, [])
    try:
        date = email.utils.parsedate_to_datetime(values[0][:64]) if len(values) == 1 else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return date.replace(tzinfo=datetime.UTC) if date is not None and date.tzinfo is None else date
