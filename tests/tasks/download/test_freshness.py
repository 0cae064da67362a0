"""Freshness by the rules of RFC 9111, 4.2."""

import datetime

import pytest
from multidict import CIMultiDict

from tasks.download.freshness import MAX_DAYS, fresh_until, is_fresh

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
DATE = ("Date", "Fri, 02 Jan 2026 03:04:05 GMT")
HOUR = "2026-01-02T04:04:05Z"
MOST = (NOW + datetime.timedelta(days=MAX_DAYS)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("Cache-Control", "max-age=3600")], HOUR),
        ([("Cache-Control", 'public, MAX-AGE="3600"')], HOUR),
        ([("Cache-Control", "public"), ("Cache-Control", "max-age=3600")], HOUR),
        ([("Cache-Control", "max-age=7200"), ("Age", "3600")], HOUR),
        ([("Cache-Control", "max-age=7200"), ("Date", "Fri, 02 Jan 2026 02:04:05 GMT")], HOUR),  # an hour on its way
        ([("Cache-Control", "max-age=3600"), ("Expires", "Fri, 02 Jan 2026 09:04:05 GMT")], HOUR),
        ([DATE, ("Expires", "Fri, 02 Jan 2026 04:04:05 GMT")], HOUR),
        ([("Expires", "Fri, 02 Jan 2026 04:04:05 GMT")], HOUR),
        ([("Cache-Control", "max-age=31536000")], MOST),
        ([], ""),
        ([("Cache-Control", "max-age=0")], ""),
        ([("Cache-Control", "max-age=3600, no-cache")], ""),
        ([("Cache-Control", 'no-cache="Set-Cookie", max-age=3600')], ""),
        ([("Cache-Control", "no-store, max-age=3600")], ""),
        ([("Cache-Control", "s-maxage=3600")], ""),
        ([("Cache-Control", "max-age=3600, max-age=60")], ""),
        ([("Cache-Control", "max-age=-1")], ""),
        ([("Cache-Control", "max-age=1h")], ""),
        ([("Cache-Control", "max-age=" + "9" * 5000)], ""),
        ([("Cache-Control", "max-age")], ""),
        ([("Cache-Control", "max-age=3600, " + "x" * 1024 + ", no-store")], ""),
        ([("Cache-Control", "max-age=3600"), ("Age", "3600")], ""),
        ([("Cache-Control", "max-age=3600"), ("Age", "?")], ""),
        ([("Cache-Control", "max-age=3600"), ("Vary", "Accept, *")], ""),
        ([("Expires", "0")], ""),
        ([("Expires", "Fri, 02 Jan 2026 04:04:05 GMT")] * 2, ""),
        ([DATE, ("Expires", DATE[1]), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")], ""),
    ],
)
def test_lifetime(fields: list[tuple[str, str]], expected: str) -> None:
    assert fresh_until(CIMultiDict(fields), NOW) == expected


def test_a_page_is_fresh_before_that_time() -> None:
    second = datetime.timedelta(seconds=1)
    until = fresh_until(CIMultiDict([("Cache-Control", "max-age=1")]), NOW)
    assert is_fresh(until, NOW) and not is_fresh(until, NOW + second) and not is_fresh("", NOW)
