"""Feeds of a start page, and links within a domain."""

from pathlib import Path

import pytest

from tests.tasks.discover.site_files import rejected, rows, run, serve, urls
from tests.tasks.web_server import Site

A = "http://a.test"
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
