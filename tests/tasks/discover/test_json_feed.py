"""JSON Feed: its items as URLs, other and hostile JSON refused."""

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.discover.json_feed import MAX_JSON, read_json_feed
from tasks.discover.page_links import read_links
from tasks.discover.xml_entries import MAX_ENTRIES, read_entries
from tasks.download.response_body import FetchRejectedError
from tests.tasks.discover.site_files import rejected, rows, run, serve, urls
from tests.tasks.web_server import Site

A = "http://a.test"
VERSION = "https://jsonfeed.org/version/1.1"


def feed(items: object, version: object = VERSION, next_url: object = None) -> bytes:
    body = {"version": version, "title": "News", "home_page_url": A, "items": items, "next_url": next_url}
    return json.dumps(body).encode()


def test_the_items_of_a_feed_are_pages(site: Site, tmp_path: Path) -> None:
    items: list[Any] = [
        {"id": "1", "url": f"{A}/1", "external_url": "http://b.test/", "date_published": "2024-01-02T00:00:00Z"},
        {"id": "2", "external_url": "2", "date_published": "2024-01-01", "date_modified": "2024-02-01\ud800\x00"},
        {"id": "3", "url": "http://b.test/3"},
        {"id": "4", "url": "javascript:alert(1)"},
        {"id": "5", "url": "/5\ud800\x00"},
        {"id": "6", "url": "/" + 9000 * "6"},
        {"id": "7", "url": 7, "external_url": None},
        *("text", None, [], {}),
        {"id": "8", "url": " /8\u00e4 "},
    ]
    link = '<link rel="alternate" type="application/feed+json; charset=utf-8" href="/moved">'
    serve(site, "/", f"<html><head>{link}</head>".encode(), "text/html")
    site.handlers["/moved"] = lambda h: h.answer(b"", status=302, Location="/news/feed.json")
    serve(site, "/news/feed.json", feed(items), "application/feed+json")
    manifest = run(tmp_path, site, [A], methods=["feeds"])
    assert urls(tmp_path, manifest) == [f"{A}/1", f"{A}/news/2", f"{A}/5%00", f"{A}/8%C3%A4"]
    found = rows(tmp_path, manifest)
    assert [row["modified"] for row in found] == ["2024-01-02T00:00:00Z", "2024-02-01", None, None]
    assert {row["found_in"] for row in found} == {f"{A}/news/feed.json"}
    assert [reason for _, reason in rejected(tmp_path, manifest)] == ["other_host", "other_host", "too_long"]


def test_a_feed_of_version_1_as_a_sitemap(site: Site, tmp_path: Path) -> None:
    site.robots["a.test"] = (200, f"Sitemap: {A}/feed\n")
    body = b"\xef\xbb\xbf \n" + feed([{"url": "/1"}], "https://jsonfeed.org/version/1")
    serve(site, "/feed", body, "application/json")
    assert urls(tmp_path, run(tmp_path, site, [A])) == [f"{A}/1"]
    assert read_entries(feed([{"url": "/1"}]).decode().encode("utf-16"), 100).entries == [("/1", "")]


def serve_pages(site: Site, count: int, last: object) -> None:
    """A feed of pages with one item each; the last one names another address."""
    serve(site, "/", b'<link rel="alternate" type="application/feed+json" href="/f/0">', "text/html")
    for n in range(count):
        next_url = f"{n + 1}" if n + 1 < count else last
        serve(site, f"/f/{n}", feed([{"url": f"/{n}"}], next_url=next_url), "application/feed+json")


@pytest.mark.parametrize(
    ("last", "rejection"),
    [
        ("0", []),
        (f"{A}/f/2#x", []),
        (None, []),
        ({"url": "/f/9"}, []),
        ("http://b.test/f/9", ["other_host"]),
        ("javascript:1", ["other_host"]),
        ("/private/9", ["robots_forbidden"]),
        ("/f/gone", ["not_a_sitemap"]),
    ],
)
def test_the_pages_of_a_feed_are_followed(site: Site, tmp_path: Path, last: object, rejection: list[str]) -> None:
    site.robots["a.test"] = (200, "User-agent: *\nDisallow: /private\n")
    serve_pages(site, 3, last)
    manifest = run(tmp_path, site, [A], methods=["feeds"])
    assert urls(tmp_path, manifest) == [f"{A}/0", f"{A}/1", f"{A}/2"]
    assert [row["found_in"] for row in rows(tmp_path, manifest)] == [f"{A}/f/{n}" for n in range(3)]
    assert [reason for _, reason in rejected(tmp_path, manifest)] == rejection
    assert [site.hits["a.test", f"/f/{n}"] for n in range(3)] == [1, 1, 1]
    assert site.hits["b.test", "/f/9"] == site.hits["a.test", "/private/9"] == 0


def test_an_endless_feed_ends_at_the_limit(site: Site, tmp_path: Path) -> None:
    serve_pages(site, 1, "/t/0")
    for n in range(9):
        serve(site, f"/t/{n}", feed([{"url": "/same"}], next_url=f"/t/{n + 1}"), "application/json")
    manifest = run(tmp_path, site, [A], methods=["feeds"], max_sitemaps=4)
    assert urls(tmp_path, manifest) == [f"{A}/0", f"{A}/same"]
    assert rejected(tmp_path, manifest)[-1] == (f"{A}/t/3", "max_sitemaps")
    assert site.hits["a.test", "/t/2"] == 1 and site.hits["a.test", "/t/3"] == 0


def test_a_page_without_items_is_the_last(site: Site, tmp_path: Path) -> None:
    site.robots["a.test"] = (200, f"Sitemap: {A}/feed\n")
    serve(site, "/feed", feed([{"url": "/1"}], next_url="/feed2"), "application/json")
    serve(site, "/feed2", feed([], next_url="/feed3"), "application/json")
    assert urls(tmp_path, run(tmp_path, site, [A])) == [f"{A}/1"]
    assert site.hits["a.test", "/feed2"] == 1 and site.hits["a.test", "/feed3"] == 0


def test_the_interface_of_wordpress_is_no_feed() -> None:
    head = "".join(f'<link rel="alternate" title="JSON" type="application/json" href="{target}">' for target in (
        f"{A}/wp-json/wp/v2/pages/2", "/blog/wp-json/", f"{A}/?rest_route=/wp/v2/posts/1", "/feed.json", "/wp-jsonfeed",
    ))  # fmt: skip
    head += '<link rel="alternate" type="application/feed+json" href="/wp-json/feed">'
    assert read_links(head.encode()).feeds == ["/feed.json", "/wp-jsonfeed", "/wp-json/feed"]


def test_links_to_feeds_of_any_type() -> None:
    head = "".join(f'<link rel="alternate" type="{kind}" href="/{n}">' for n, kind in enumerate([
        "application/feed+json", "Application/JSON", "application/rss+xml; charset=UTF-8", "application/json+oembed",
        "application/ld+json", "text/html", "",
    ]))  # fmt: skip
    assert read_links(head.encode()).feeds == ["/0", "/1", "/2"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{" * 5_000_000, "not_a_sitemap"),
        (b'{"a":' * 1_000_000, "not_a_sitemap"),
        (b'{"items":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "not_a_sitemap"),
        (b'{"version": "https://jsonfeed.org/version/1", "items": [{"url": "/1"}', "not_a_sitemap"),
        (b'{"version": 1' + b"1" * 5000 + b"}", "not_a_sitemap"),
        (b"{" + b" " * MAX_JSON + b"}", "too_large"),
        (feed([], "https://jsonfeed.org/version/2"), "not_a_sitemap"),
        (feed([], ["https://jsonfeed.org/version/1"]), "not_a_sitemap"),
        (feed([], "https://evil.test/https://jsonfeed.org/version/1"), "not_a_sitemap"),
        (feed({"url": "/1"}), "not_a_sitemap"),
        (feed(None), "not_a_sitemap"),
        (b'{"@context": "https://schema.org", "url": "/1"}', "not_a_sitemap"),
    ],
    ids=range(12),
)
def test_hostile_and_other_json_is_refused(body: bytes, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(FetchRejectedError) as error:
        read_entries(body, 100)
    assert error.value.reason == reason and len(error.value.detail) <= 100
    assert time.process_time() - began < 5


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    """The worst case: an object of one value takes thirty times its characters."""
    head, tail = b'{"version": "https://jsonfeed.org/version/1", "items": [', b"0]}"
    body = head + b'{"a":0},' * ((MAX_JSON - len(head) - len(tail)) // 8) + tail
    tracemalloc.start()
    try:
        assert read_json_feed(body) == ([], "")
        assert tracemalloc.get_traced_memory()[1] < 400 * 2**20
    finally:
        tracemalloc.stop()


def test_a_feed_of_too_many_items_is_cut() -> None:
    found = read_entries(feed([{"url": f"/{number}"} for number in range(MAX_ENTRIES + 3)]), 100)
    assert (len(found.entries), found.left_out, found.kind) == (MAX_ENTRIES, 3, "feed")


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["url", "items", "id"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES)
def test_any_json_gives_texts_or_a_reason(items: object, version: object) -> None:
    for given_version in (VERSION, version):
        try:
            found = read_json_feed(feed(items, given_version))
        except FetchRejectedError as error:
            assert error.reason == "not_a_sitemap"
        else:
            assert all(url.strip() == url and isinstance(date, str) for url, date in found[0])
