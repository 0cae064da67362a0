"""The step `discover` on pages and feeds: URLs of links, JSON feeds and forgotten pages, and when it runs again."""

import json
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from tasks.core.forgotten import FORGOTTEN, Forgotten, domain_hash, encode_forgotten, name_of, url_hash
from tasks.discover.page_links import read_links
from tasks.discover.xml_entries import MAX_ENTRIES, MAX_JSON, read_entries, read_json_feed
from tasks.download.response_body import FetchRejectedError
from tests.tasks.discover.site_files import index, rejected, rows, run, serve, urls, urlset
from tests.tasks.web_server import Site

A, B = "http://a.test", "http://b.test"
SEARCH = """
import sys
from pathlib import Path
from tests.tasks.discover.site_files import run

class Address:
    address = sys.argv[2]

run(Path(sys.argv[1]), Address, sys.argv[3:], methods=["sitemaps"])
"""


def test_a_refresh_finds_new_urls_and_completes_a_killed_one(site: Site, tmp_path: Path) -> None:
    serve(site, "/sitemap.xml", urlset([f"{A}/1", f"{A}/2"]))
    first = run(tmp_path, site, [A], methods=["sitemaps"])
    serve(site, "/sitemap.xml", urlset([f"{A}/2", f"{A}/3"]))
    assert run(tmp_path, site, [A], methods=["sitemaps"]) == first  # cached
    again = run(tmp_path, site, [A], refresh=True, methods=["sitemaps"])
    assert urls(tmp_path, again) == [f"{A}/2", f"{A}/3"]
    fresh = run(tmp_path / "fresh", site, [A], methods=["sitemaps"])
    assert (again.identity, again.fingerprint) == (fresh.identity, first.fingerprint)
    # A kill after the first batch leaves its record and no manifest: it is not searched again, also with --refresh.
    (tmp_path / "discover/_manifest.json").unlink()
    assert run(tmp_path, site, [A], refresh=True, methods=["sitemaps"]).identity == again.identity


@pytest.mark.slow
def test_a_search_killed_by_sigkill_is_completed(site: Site, tmp_path: Path) -> None:
    asked, killed = threading.Event(), threading.Event()

    def hold(handler: object) -> None:
        asked.set()
        killed.wait(60)

    serve(site, "/sitemap.xml", urlset([f"{A}/1", f"{A}/2"]))
    site.robots["b.test"] = (200, f"Sitemap: {B}/map.xml\n")
    site.handlers["/map.xml"] = hold
    search = [sys.executable, "-c", SEARCH, str(tmp_path), site.address, A, B]
    process = subprocess.Popen(search)
    try:
        assert asked.wait(60)
        folder = Folder(tmp_path) / "discover"
        while not any(name.startswith("_batches/part-00000") for name in folder.sizes()):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
        killed.set()
    hits = site.hits["a.test", "/sitemap.xml"]
    serve(site, "/map.xml", urlset([f"{B}/9"]))
    found = run(tmp_path, site, [A, B], methods=["sitemaps"])
    assert urls(tmp_path, found) == [f"{A}/1", f"{A}/2", f"{B}/9"]
    assert site.hits["a.test", "/sitemap.xml"] == hits  # what was found is not asked for again
    assert found.identity == run(tmp_path / "fresh", site, [A, B], methods=["sitemaps"]).identity


RSS = b"""<rss version="2.0"><channel><link>http://a.test/</link><title>News</title>
<item><link>http://a.test/n/1</link><pubDate>Tue, 02 Jan 2024 00:00:00 GMT</pubDate></item>
<item><link> http://other.test/2 </link></item><item><title>none</title></item></channel></rss>"""
ATOM = b"""<feed xmlns="http://www.w3.org/2005/Atom"><link rel="self" href="http://a.test/atom"/>
<entry><link rel="enclosure" href="/x.mp3"/><link href="/n/2"/><updated>2024-01-03</updated></entry>
<entry><link rel="alternate" href="http://a.test/n/1"/></entry></feed>"""
RDF = b"""<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<item rdf:about="x"><link>/n/3</link></item></rdf:RDF>"""


def page(*links: str, head: str = "") -> bytes:
    anchors = "".join(f'<a href="{link}">x</a>' for link in links)
    return f"<html><head>{head}</head><body>{anchors}".encode()


def test_feeds_of_the_start_page(site: Site, tmp_path: Path) -> None:
    head = "".join(
        f'<link rel="alternate" type="application/{kind}+xml" href="{href}">'
        for kind, href in (("rss", "/rss"), ("atom", "http://feeds.test/atom"), ("rdf", "rdf"), ("rss", "/rss"))
    )
    serve(site, "/", page("/1", head=head), "text/html")
    for path, body in (("/rss", RSS), ("/atom", ATOM), ("/rdf", RDF)):
        serve(site, path, body, "application/xml")
    manifest = run(tmp_path, site, [A], methods=["feeds"])
    # Relative links of a feed on another host are that host's.
    assert urls(tmp_path, manifest) == [f"{A}/n/1", f"{A}/n/3"]
    assert rows(tmp_path, manifest)[0]["modified"].startswith("Tue, 02 Jan")
    assert rows(tmp_path, manifest)[0]["method"] == "feed"
    assert [reason for _, reason in rejected(tmp_path, manifest)] == ["other_host", "other_host"]


def test_links_are_followed_to_a_depth(site: Site, tmp_path: Path) -> None:
    serve(site, "/", page("/1", "/1#part", "http://b.test/", "mailto:x@a.test", "http://["), "text/html")
    serve(site, "/1", page("2", "/", '/skip" rel="nofollow'), "text/html")
    serve(site, "/2", page("3", head='<base href="/deep/">'), "text/html")
    serve(site, "/deep/3", page("/4"), "text/html")
    found = {}
    for depth in (1, 2, 3):
        root = tmp_path / str(depth)
        found[depth] = urls(root, run(root, site, [A], methods=["links"], link_depth=depth))
    assert found[1] == [f"{A}/", f"{A}/1"]
    assert found[2] == [f"{A}/", f"{A}/1", f"{A}/2"]
    assert found[3] == [f"{A}/", f"{A}/1", f"{A}/2", f"{A}/deep/3"]
    assert site.hits["b.test", "/"] == 0 and site.hits["a.test", "/deep/3"] == 0


def test_robots_rules_and_limits_of_link_following(site: Site, tmp_path: Path) -> None:
    site.robots["a.test"] = (200, "User-agent: *\nDisallow: /private\n")
    site.handlers["/trap"] = lambda h: h.answer(page(f"/trap?{h.path.count('?') and int(h.path[6:]) + 1}"), "text/html")
    serve(site, "/", page("/private/1", "/trap?0", "/image", "/quiet"), "text/html")
    serve(site, "/quiet", page("/hidden", head='<meta name="robots" content="noindex, nofollow">'), "text/html")
    manifest = run(tmp_path, site, [A], methods=["links"], link_depth=20, max_link_pages=8)
    found = urls(tmp_path, manifest)
    assert f"{A}/trap?2" in found and len(found) < 12 and f"{A}/hidden" not in found
    assert (f"{A}/private/1", "robots_forbidden") in rejected(tmp_path, manifest)
    assert (f"{A}/image", "content_type") in rejected(tmp_path, manifest)
    assert site.hits["a.test", "/private/1"] == 0


@pytest.mark.parametrize("subdomains", [False, True])
def test_subdomains_are_a_choice(site: Site, tmp_path: Path, subdomains: bool) -> None:
    links = ["http://www.a.test/1", "http://sub.a.test/2", "http://nota.test/3", "http://a.test.b.test/4"]
    serve(site, "/", page(*links), "text/html")
    manifest = run(tmp_path, site, [A], methods=["links"], link_depth=1, subdomains=subdomains)
    assert urls(tmp_path, manifest)[1:] == links[: 2 if subdomains else 1]


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


def test_a_feed_of_version_1_as_a_sitemap_and_one_of_too_many_items(site: Site, tmp_path: Path) -> None:
    site.robots["a.test"] = (200, f"Sitemap: {A}/feed\n")
    body = b"\xef\xbb\xbf \n" + feed([{"url": "/1"}], "https://jsonfeed.org/version/1")
    serve(site, "/feed", body, "application/json")
    assert urls(tmp_path, run(tmp_path, site, [A])) == [f"{A}/1"]
    assert read_entries(feed([{"url": "/1"}]).decode().encode("utf-16"), 100).entries == [("/1", "")]
    found = read_entries(feed([{"url": f"/{number}"} for number in range(MAX_ENTRIES + 3)]), 100)
    assert (len(found.entries), found.left_out, found.kind) == (MAX_ENTRIES, 3, "feed")


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


def test_an_endless_feed_ends_at_the_limit_and_any_at_a_page_without_items(site: Site, tmp_path: Path) -> None:
    serve_pages(site, 1, "/t/0")
    for n in range(9):
        serve(site, f"/t/{n}", feed([{"url": "/same"}], next_url=f"/t/{n + 1}"), "application/json")
    manifest = run(tmp_path / "endless", site, [A], methods=["feeds"], max_sitemaps=4)
    assert urls(tmp_path / "endless", manifest) == [f"{A}/0", f"{A}/same"]
    assert rejected(tmp_path / "endless", manifest)[-1] == (f"{A}/t/3", "max_sitemaps")
    assert site.hits["a.test", "/t/2"] == 1 and site.hits["a.test", "/t/3"] == 0
    site.robots["a.test"] = (200, f"Sitemap: {A}/feed\n")
    serve(site, "/feed", feed([{"url": "/1"}], next_url="/feed2"), "application/json")
    serve(site, "/feed2", feed([], next_url="/feed3"), "application/json")
    assert urls(tmp_path, run(tmp_path, site, [A], methods=["sitemaps"])) == [f"{A}/1"]
    assert site.hits["a.test", "/feed2"] == 1 and site.hits["a.test", "/feed3"] == 0


def test_links_to_feeds_of_any_type_but_not_to_the_interface_of_wordpress() -> None:
    def feeds(*links: tuple[str, str]) -> list[str]:
        head = "".join(f'<link rel="alternate" title="x" type="{kind}" href="{target}">' for kind, target in links)
        return read_links(head.encode()).feeds

    ours = ("application/feed+json", "Application/JSON", "application/rss+xml; charset=UTF-8")
    others = ("application/json+oembed", "application/ld+json", "text/html", "")
    assert feeds(*((kind, f"/{n}") for n, kind in enumerate((*ours, *others)))) == ["/0", "/1", "/2"]
    wordpress = (f"{A}/wp-json/wp/v2/pages/2", "/blog/wp-json/", f"{A}/?rest_route=/wp/v2/posts/1")
    found = feeds(*(("application/json", target) for target in (*wordpress, "/feed.json", "/wp-jsonfeed")))
    assert found == ["/feed.json", "/wp-jsonfeed"]
    assert feeds(("application/feed+json", "/wp-json/feed")) == ["/wp-json/feed"]


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


LISTED = Forgotten(
    urls=tuple(sorted(map(url_hash, (f"{A}/secret", f"{A}/map.xml")))), domains=(domain_hash("gone.test"),)
)


def test_forgotten_pages_are_not_requested(site: Site, tmp_path: Path) -> None:
    (tmp_path / FORGOTTEN).write_bytes(encode_forgotten(LISTED))
    with pytest.raises(RunError, match=r"no URL was found for 1 domain \(forgotten 1\)"):
        run(tmp_path, site, ["www.gone.test"], methods=["sitemaps", "links"])
    assert not site.hits
    serve(site, "/", b'<html><body><a href="/secret">x</a><a href="/to">x</a><a href="/1">x</a>', "text/html")
    serve(site, "/secret", b'<html><body><a href="/by-secret">x</a>', "text/html")
    serve(site, "/1", b'<html><body><a href="/2">x</a>', "text/html")
    site.handlers["/to"] = lambda h: h.redirect("/secret")
    serve(site, "/sitemap.xml", index([f"{A}/map.xml", f"{A}/other.xml"]))
    serve(site, "/map.xml", urlset(["/by-map"]))
    serve(site, "/other.xml", urlset(["/3"]))
    found = run(tmp_path, site, [A, "http://gone.test"], methods=["sitemaps", "links"])
    assert urls(tmp_path, found) == [f"{A}/3", f"{A}/", f"{A}/to", f"{A}/1", f"{A}/2"]
    assert not {path for host, path in site.hits if path.startswith(("/secret", "/map"))}
    assert "gone.test" not in {host for host, _ in site.hits}  # not even for robots.txt
    names = [name_of(url) for url in (f"{A}/secret", f"{A}/map.xml", "http://gone.test/")]
    assert sorted(rejected(tmp_path, found)) == sorted((name, "forgotten") for name in names)
