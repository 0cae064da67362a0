"""Freshness by the rules of RFC 9111, 4.2."""

import datetime

import pytest
from multidict import CIMultiDict

from tasks.download.freshness import MAX_DAYS, fresh_until, is_fresh

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
DATE = ("Date", "Fri, 02 Jan 2026 03:04:05 GMT")
HOUR = "2026-01-02T04:04:05Z"
MOST = (NOW + datetime.timedelta(days=MAX_DAYS)).strftime("%Y-%m-%dT%H:%M:%SZ")
IN_AN_HOUR = ("Expires", "Fri, 02 Jan 2026 04:04:05 GMT")
LONG = "9" * 5000


def control(*values: str, **fields: str) -> list[tuple[str, str]]:
    return [*(("Cache-Control", value) for value in values), *fields.items()]


@pytest.mark.parametrize(
    ("expected", "headers"),
    [
        (HOUR, [control("max-age=3600"), control('public, MAX-AGE="3600"'), control("public", "max-age=3600")]),
        (HOUR, [control("max-age=7200", Age="3600"), control("max-age=7200", Date="Fri, 02 Jan 2026 02:04:05 GMT")]),
        (HOUR, [control("max-age=3600", Expires="Fri, 02 Jan 2026 09:04:05 GMT"), [DATE, IN_AN_HOUR], [IN_AN_HOUR]]),
        (MOST, [control("max-age=31536000")]),
        ("", [control(value) for value in ("max-age=0", "max-age=-1", "max-age=1h", "max-age", f"max-age={LONG}")]),
        ("", [control("max-age=3600, no-cache"), control('no-cache="Set-Cookie", max-age=3600')]),
        ("", [control("no-store, max-age=3600"), control("max-age=3600, " + "x" * 1024 + ", no-store")]),
        ("", [control("s-maxage=3600"), control("max-age=3600, max-age=60"), []]),
        ("", [control("max-age=3600", Age=age) for age in ("3600", "?")]),
        ("", [control("max-age=3600", Vary="Accept, *"), control(Expires="0"), [IN_AN_HOUR] * 2]),
        ("", [[DATE, ("Expires", DATE[1]), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")]]),
    ],
)
def test_lifetime(expected: str, headers: list[list[tuple[str, str]]]) -> None:
    for fields in headers:
        assert fresh_until(CIMultiDict(fields), NOW) == expected, fields


def test_a_page_is_fresh_before_that_time() -> None:
    second = datetime.timedelta(seconds=1)
    until = fresh_until(CIMultiDict([("Cache-Control", "max-age=1")]), NOW)
    assert is_fresh(until, NOW) and not is_fresh(until, NOW + second) and not is_fresh("", NOW)
