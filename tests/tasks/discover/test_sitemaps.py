"""Discovery by sitemaps, trees of indexes, and by Common Crawl's index and archives."""

import gzip
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import Folder, Manifest
from tasks.commoncrawl.step import commoncrawl
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.discover.domains import find_domains
from tasks.discover.step import DiscoverSettings, discover
from tasks.discover.xml_entries import MAX_ENTRIES, MAX_REFERENCES, read_entries
from tasks.download.response_body import FetchRejectedError
from tasks.sources.index import read_pages
from tests.tasks.discover.site_files import (
    NAME,
    Crawl,
    capture,
    index,
    rejected,
    rows,
    run,
    serve,
    serve_crawl,
    urls,
    urlset,
)
from tests.tasks.download.fetch_helpers import make_settings
from tests.tasks.web_server import Handler, Site

A = "http://a.test"
BOMB = b"""<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "http://a.test/1"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<urlset><url><loc>&b;</loc></url></urlset>"""
OUTSIDE = b"""<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><urlset><url><loc>&a;</loc></url></urlset>"""


def test_a_tree_of_indexes(site: Site, tmp_path: Path) -> None:
    site.robots["a.test"] = (200, f"User-agent: *\nDisallow: /x\nSitemap: {A}/maps/index.xml\nsitemap: /more.txt\n")
    listed = [f"{A}/maps/1.xml", f"{A}/maps/2.xml.gz", f"{A}/maps/index.xml", "http://b.test/3.xml", f"{A}/none.xml"]
    serve(site, "/maps/index.xml", index(listed))
    serve(site, "/maps/1.xml", urlset([f"{A}/1", f"{A}/a?x=1&amp;y=2", "http://b.test/1", "ftp://a.test/", f"{A}/1"]))
    serve(site, "/maps/2.xml.gz", gzip.compress(urlset(["https://www.a.test/2", "/relative"])), "application/gzip")
    serve(site, "/more.txt", f"{A}/5\n{A}/6\n".encode(), "text/plain")
    serve(site, "/sitemap.xml", urlset([f"{A}/7"]))
    site.handlers["/none.xml"] = site.handlers["/gone"]
    manifest = run(tmp_path, site, [A], methods=["sitemaps"])
    expected = [f"{A}/5", f"{A}/6", f"{A}/7", f"{A}/1", f"{A}/a?x=1&y=2", "https://www.a.test/2", f"{A}/relative"]
    assert urls(tmp_path, manifest) == expected
    first = rows(tmp_path, manifest)[3]
    found_in = {"method": "sitemap", "found_in": f"{A}/maps/1.xml", "depth": 1, "modified": "2024-01-02"}
    assert first == {"url": f"{A}/1", "domain": "a.test", **found_in}
    reasons = sorted(reason for _, reason in rejected(tmp_path, manifest))
    assert reasons == ["not_found", "other_host", "other_host", "other_host", "sitemap_loop"]
    again = run(tmp_path, site, [A], methods=["sitemaps"])
    assert again.identity == manifest.identity
    assert site.hits["a.test", "/maps/1.xml"] == 1  # the step is cached


def test_scopes_of_files_that_robots_txt_does_not_name(site: Site, tmp_path: Path) -> None:
    serve(site, "/sitemap.xml", index([f"{A}/blog/map.xml"]))
    serve(site, "/blog/map.xml", urlset([f"{A}/blog/1", f"{A}/other"]))
    manifest = run(tmp_path / "a", site, [A])
    assert urls(tmp_path / "a", manifest) == [f"{A}/blog/1"]
    assert (f"{A}/other", "outside_scope") in rejected(tmp_path / "a", manifest)
    site.robots["a.test"] = (200, "Sitemap: http://cdn.test/blog/map.xml\n")  # on another host, as robots.txt may say
    assert urls(tmp_path / "b", run(tmp_path / "b", site, [A])) == [f"{A}/blog/1", f"{A}/other"]


def test_an_index_that_is_found_by_a_redirect(site: Site, tmp_path: Path) -> None:
    """Most sites send `a.test` to `www.a.test`, whose sitemaps the index names."""
    www = "http://www.a.test"
    site.handlers["/sitemap.xml"] = lambda h: h.redirect(f"{www}/maps/index.xml")
    serve(site, "/maps/index.xml", index([f"{www}/maps/1.xml", "2.xml", "http://b.test/3.xml"]))
    serve(site, "/maps/1.xml", urlset([f"{www}/maps/one", "two"]))
    serve(site, "/maps/2.xml", urlset([f"{www}/maps/three"]))
    manifest = run(tmp_path, site, [A], methods=["sitemaps"])
    assert urls(tmp_path, manifest) == [f"{www}/maps/one", f"{www}/maps/two", f"{www}/maps/three"]
    assert rejected(tmp_path, manifest) == [("http://b.test/3.xml", "other_host")]


def test_depth_and_numbers_are_bounded(site: Site, tmp_path: Path) -> None:
    for depth in range(6):
        serve(site, f"/{depth}.xml", index([f"{A}/{depth + 1}.xml", f"{A}/leaf{depth}.xml"]))
        serve(site, f"/leaf{depth}.xml", urlset([f"{A}/page{depth}"]))
    site.robots["a.test"] = (200, f"Sitemap: {A}/0.xml\n")
    manifest = run(tmp_path / "a", site, [A], sitemap_depth=2)
    assert urls(tmp_path / "a", manifest) == [f"{A}/page0", f"{A}/page1"]
    assert [reason for _, reason in rejected(tmp_path / "a", manifest)].count("sitemap_depth") == 2
    manifest = run(tmp_path / "b", site, [A], max_sitemaps=4)
    assert "max_sitemaps" in dict(rejected(tmp_path / "b", manifest)).values()
    manifest = run(tmp_path / "c", site, [A], max_urls=1)
    assert urls(tmp_path / "c", manifest) == [f"{A}/page0"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (BOMB, "xml_entities"),
        (BOMB.replace(b'<?xml version="1.0"?>', b"").decode().encode("utf-16"), "xml_entities"),
        (OUTSIDE.decode().encode("utf-16-be"), "xml_entities"),
        (b"<?xml version='1.0'" + b" " * 2000 + b"encoding='UTF-7'?>", "not_a_sitemap"),
        (b"<?xml version='1.0' encoding='cp037'?>" + BOMB[21:].decode().encode("cp037"), "not_a_sitemap"),
        (b"<urlset>" + b"&" * (MAX_REFERENCES + 1), "too_large"),
        (gzip.compress(b" " * 30_000_000), "compression_ratio"),
        (gzip.compress(gzip.compress(b"x")), "not_a_sitemap"),
        (b"<html><body>not found", "not_a_sitemap"),
        (b"\x89PNG", "not_a_sitemap"),
        (b"", "not_a_sitemap"),
        (b"\x1f\x8b\x08 damaged", "content_encoding"),
        (b"<a>" * 200_000, "not_a_sitemap"),
    ],
    ids=range(13),
)
def test_hostile_files_are_refused(body: bytes, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(FetchRejectedError) as error:
        read_entries(body, 100)
    assert error.value.reason == reason
    assert time.process_time() - began < 5


def test_deep_damaged_and_long_files_give_what_comes_before() -> None:
    found = read_entries(gzip.compress(urlset(f"{A}/{number}" for number in range(MAX_ENTRIES + 3))), 100)
    assert (len(found.entries), found.left_out) == (MAX_ENTRIES, 3)
    found = read_entries(b"<urlset><url><loc>http://a.test/1</loc></url>" + b"<url>" * 100_000, 100)
    assert found.entries == [("http://a.test/1", "")]
    with_image = b"<urlset><url><loc>/p</loc><i:image xmlns:i='i'><i:loc>/i.jpg</i:loc></i:image></url></urlset>"
    assert read_entries(with_image, 100).entries == [("/p", "")]


def test_a_fault_changes_no_other_url() -> None:
    """A bare `&`, a control character, a wrong byte: the references of the other URLs stay what they are."""
    stated = {
        **{f"{A}/1?a=1&b=2&copy=3": f"{A}/1?a=1&b=2&copy=3", f"{A}/2?a=1&amp;b=&lt;&#38;c=3": f"{A}/2?a=1&b=<&c=3"},
        **{f"<![CDATA[{A}/3?a=1&b=2&amp;c]]>": f"{A}/3?a=1&b=2&amp;c", f"{A}/4&nbsp;": f"{A}/4&nbsp;"},
    }
    for fault in (b"", b"<url><loc>http://a.test/\x01\xe4</lod></url>"):
        body = urlset(stated).replace(b"<url>", fault + b"<url>", 1)
        assert [url for url, _ in read_entries(body, 100).entries][-4:] == [*stated.values()]


def test_a_wrong_declaration_of_the_encoding_is_passed_over() -> None:
    """So are notices of a script before a file; names of elements and relations are read in any case."""
    for declared in ("UTF-16", "utf-16le", "ISO-10646-UCS-2", "UTF-7", "x-unknown"):
        body = f"<?xml version='1.0' encoding='{declared}'?><urlset><url><loc>{A}/ä</loc></url></urlset>".encode()
        latin = body.replace(declared.encode(), b"ISO-8859-1").decode().encode("latin-1")
        for whole in (latin, *(marks + body for marks in (b"", b"\xef\xbb\xbf" * 3, b"\r\n\xef\xbb\xbf"))):
            assert read_entries(whole, 100).entries == [(f"{A}/ä", "")], declared
    plain = urlset([f"{A}/1"])
    for notice in (
        b"Warning: Undefined variable in /x.php on line 3\n",
        b"<br />\n<b>N</b>:  a &amp; b<br />\n",
        b"PHP\n\n",
    ):
        for whole in (notice + plain, notice + plain.partition(b"?>")[2], gzip.compress(notice + plain)):
            assert read_entries(whole, 100).entries == [(f"{A}/1", "2024-01-02")]
        with pytest.raises(FetchRejectedError) as error:
            read_entries(notice + BOMB, 100)
        assert error.value.reason == "xml_entities"
    body = b"<URLSET><URL><LOC>/1</LOC><LastMod>2024</LastMod></URL></URLSET>"
    assert read_entries(body, 100).entries == [("/1", "2024")]
    feed = b"<Feed><Entry><Link Rel='x' rel='Alternate' href='/2'/></Entry></Feed>"
    assert read_entries(feed, 100).entries == [("/2", "")]


@pytest.mark.parametrize(
    ("feed", "expected"),
    [
        ("<feed xml:base='/blog/'><entry><link href='1'/></entry></feed>", [f"{A}/blog/1"]),
        ("<feed xml:base='/b/'><entry xml:base='c/'><link xml:base='d/' href='1'/></entry></feed>", [f"{A}/b/c/d/1"]),
        ("<feed xml:base='/b/'><entry xml:base='c/'/><entry><link href='2'/></entry></feed>", [f"{A}/b/2"]),
        ("<feed xml:base='/blog/x'><entry><link href='?p=1'/></entry></feed>", [f"{A}/blog/x?p=1"]),
        ("<feed><entry xml:base='http://b.test/'><link href='1'/></entry></feed>", ["http://b.test/1"]),
        ("<feed xml:base='javascript:x'><entry><link href='1'/></entry></feed>", ["1"]),
        ("<feed xml:base='http://[::1'><entry xml:base='/c/'><link href='1'/></entry></feed>", [f"{A}/c/1"]),
        (f"<feed xml:base='{'x' * 9000}'><entry><link href='1'/></entry></feed>", ["1"]),
        ("<feed xml:base='/b/'><entry><link href='http://[::1'/></entry></feed>", ["http://[::1"]),
        ("<feed base='/blog/'><entry><link href='1'/></entry></feed>", ["1"]),
        ("<rss><channel xml:base='http://a.test/n/'><item><link> 1 </link></item></channel></rss>", [f"{A}/n/1"]),
        ("<rss xml:base='/n/'><channel><item><link xml:base='m/'>2</link></item></channel></rss>", [f"{A}/n/m/2"]),
        ("<urlset xml:base='/n/'><url><loc>/1</loc></url></urlset>", ["/1"]),
    ],
    ids=range(13),
)  # fmt: skip
def test_xml_base_holds_for_the_links_below_it(feed: str, expected: list[str]) -> None:
    assert [url for url, _ in read_entries(feed.encode(), 100, f"{A}/feeds/atom.xml").entries] == expected


def test_an_item_is_named_by_its_page_and_not_by_its_picture() -> None:
    links = "<link rel='alternate' type='application/pdf' href='/1.pdf'/><link type='text/html' href='/1'/>"
    assert read_entries(f"<feed><entry>{links}</entry></feed>".encode(), 100).entries == [("/1", "")]
    items = (
        f"<item><guid>{A}/1</guid></item><item><guid isPermaLink='false'>{A}/2</guid></item>"
        f"<item><guid>17</guid></item><item><guid isPermaLink='true'>{A}/3</guid><link>/4</link></item>"
        "<item><link>/5</link><image><url>/5.png</url></image></item>"
        "<item><link href='/6'/></item><item><link rel='self' href='/rss'/><link>/7</link></item>"
    )
    found = read_entries(f"<rss><channel>{items}</channel></rss>".encode(), 100)
    assert [url for url, _ in found.entries] == [f"{A}/1", "/4", "/5", "/6", "/7"]


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300), st.text("<>/urlsetoc&;![CDATA]-?", max_size=200))
def test_any_file_gives_entries_or_a_reason(head: bytes, text: str) -> None:
    for body in (head, text.encode(), b"<urlset>" + text.encode(), gzip.compress(head)):
        try:
            assert len(read_entries(body, 100).entries) <= MAX_ENTRIES
        except FetchRejectedError as error:
            assert error.reason


def test_domains(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# mine\nB.example\n\nhttps://www.c.example/\nb.example\n")
    found = find_domains(["a.example:8080", f"{tmp_path}/list.txt", "http://d.example"])
    expected = [("a", None, 8080), ("b", None, None), ("c", "https", None), ("d", "http", None)]
    assert [(one.name, one.scheme, one.port) for one in found] == [(f"{n}.example", *rest) for n, *rest in expected]
    for bad in ("http://a.example/page", "ftp://a.example", "a b", "http://[::1", "", "user@"):
        with pytest.raises(UserError, match="is no domain"):
            find_domains([bad])
    with pytest.raises(UserError, match=r"none\.txt"):
        find_domains([f"{tmp_path}/none.txt"])


def test_a_discovery_without_any_url_is_an_error(site: Site, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no URL was found for 1 domain \(.*not_found 2.*discover\.methods"):
        run(tmp_path, site, [A])
    serve(site, "/sitemap.xml", urlset([f"{A}/1"]))
    assert urls(tmp_path, run(tmp_path, site, ["a.test"])) == [f"{A}/1"]  # https is tried first, and refused


def test_order_does_not_depend_on_workers(site: Site, tmp_path: Path) -> None:
    serve(site, "/sitemap.xml", urlset(["/1", "/2"]))
    domains = [f"http://h{number}.test" for number in range(6)]
    one, two = (run(tmp_path / str(workers), site, domains, workers) for workers in (1, 4))
    assert one.identity == two.identity and len(urls(tmp_path / "1", one)) == 12
    assert site.at_once["h0.test"] == 1  # requests to a host follow one another


def test_a_stopped_discovery_goes_on_with_the_domains_that_are_left(site: Site, tmp_path: Path) -> None:
    domains, hold = find_domains(["http://h0.test", "http://h1.test"]), threading.Event()
    serve(site, "/sitemap.xml", urlset(["/1"]))
    with Runner(1) as runner:

        def held(_: Handler) -> None:
            runner.stopping.set()
            hold.wait(60)

        site.robots["h1.test"] = (200, "Sitemap: /held.xml\n")
        site.handlers["/held.xml"] = held
        given = (DiscoverSettings(methods=("sitemaps",)), runner, make_settings(), {"*.test": site.address})
        with pytest.raises(RunError, match="run again to go on"):
            discover(Folder(tmp_path), domains, *given)
        hold.set()
        serve(site, "/held.xml", urlset(["/2"]))
        hits = site.hits["h0.test", "/sitemap.xml"]
        manifest = discover(Folder(tmp_path), domains, *given)
    assert urls(tmp_path, manifest) == ["http://h0.test/1", "http://h1.test/2", "http://h1.test/1"]
    assert hits == site.hits["h0.test", "/sitemap.xml"] == 1


SERVERS = {"index_server": "http://index.test", "archive_server": "http://data.test/"}
CC = {"methods": ["commoncrawl"], **SERVERS}


@pytest.fixture
def crawl(site: Site) -> Crawl:
    """An index server and an archive server with three pages of a.test, one of them with a signal."""
    pages = [b"<p>one", b'<meta name="robots" content="noai"><p>two', b"<p>three"]
    return serve_crawl(site, {f"http://a.test/{n}": page for n, page in enumerate(pages)})


def fetch(root: Path, crawl: Crawl, found: Manifest, **changes: Any) -> Manifest:
    settings = DiscoverSettings.model_validate(CC)
    with Runner(2) as runner:
        connect = {"*.test": crawl.site.address}
        return commoncrawl(Folder(root), found, settings, make_settings(**changes), runner, connect)


def test_pages_come_from_ranges_of_the_archives(crawl: Crawl, tmp_path: Path) -> None:
    found = run(tmp_path, crawl.site, ["a.test"], **CC)
    assert [row["url"] for row in rows(tmp_path, found, captures=True)] == [f"http://a.test/{n}" for n in range(3)]
    manifest = fetch(tmp_path, crawl, found, consent={})
    folder = Folder(tmp_path / "commoncrawl")
    pages = [page for record in manifest.outputs for page in read_pages(folder, record.name)]
    bodies = {page.url: page.body for page in pages}
    assert bodies == {"http://a.test/0": b"<p>one", "http://a.test/2": b"<p>three"}
    assert {page.source for page in pages} == {"commoncrawl/CC-MAIN-2024-10"} and not any(page.fault for page in pages)
    assert manifest.outcome.reasons == {"noai": 1}
    assert {host for host, _ in crawl.site.hits} == {"index.test", "data.test"}  # the site itself is not asked
    assert fetch(tmp_path, crawl, found, consent={}).identity == manifest.identity
    assert fetch(tmp_path / "b", crawl, run(tmp_path / "b", crawl.site, ["a.test"], **CC)).outcome.kept == 3


def test_unusable_captures_are_rejected(crawl: Crawl, tmp_path: Path) -> None:
    last = {"offset": 0, "length": 10}
    crawl.lines[1:] = [
        capture("http://b.test/", **last),
        capture("http://a.test/pdf", **last, **{"mime-detected": "application/pdf"}),
        capture("http://a.test/up", **last, filename="../../etc/passwd.warc.gz"),
        capture("http://a.test/host", **last, filename="//evil.test/x.warc.gz"),
        capture("http://a.test/long", 0, 10**12),
        capture("http://a.test/gone", **last, status="404"),
        ["no object"],
        capture("http://a.test/endless", float("inf"), 10),
        capture("http://a.test/cut", **last),
        capture("http://a.test/other", 0, int(crawl.lines[0]["length"])),
        capture("http://a.test/end", 10**9, 100),
    ]
    found = run(tmp_path, crawl.site, ["a.test"], **CC)
    reasons = sorted(reason for _, reason in rejected(tmp_path, found))
    assert reasons == [*("content_type", "http_status"), *["malformed"] * 4, "other_host", "too_large"]
    manifest = fetch(tmp_path, crawl, found)
    files = [record.name for record in manifest.outcome.rejected]
    lost = {row["url"]: row["reason"] for name in files for row in read_rows(Folder(tmp_path / "commoncrawl"), name)}
    assert manifest.outcome.kept == 1
    assert lost == {f"http://a.test/{name}": "broken_record" for name in ("cut", "other", "end")}


def test_faults_of_the_servers_end_the_run(crawl: Crawl, tmp_path: Path) -> None:
    index = crawl.site.handlers["/CC-MAIN-2024-10-index"]
    crawl.site.handlers["/CC-MAIN-2024-10-index"] = crawl.site.handlers["/broken"]
    with pytest.raises(RunError, match=r"http_error: status 500; run again, or check discover\.index_server"):
        run(tmp_path, crawl.site, ["a.test"], **CC)
    for body in (b'{"pages": Infinity}', b'{"pages": -1}', b'{"pages": []}', b"<html>"):
        crawl.site.handlers["/CC-MAIN-2024-10-index"] = lambda h, body=body: h.answer(body, "application/json")
        with pytest.raises(RunError, match="not the number of pages"):
            run(tmp_path, crawl.site, ["a.test"], **CC)
    crawl.site.handlers["/CC-MAIN-2024-10-index"] = index
    crawl.site.handlers["/collinfo.json"] = lambda h: h.answer(b"[]")
    with pytest.raises(RunError, match=r"name a crawl with discover\.crawls"):
        run(tmp_path, crawl.site, ["a.test"], **CC)
    # As the index answers for a domain that it does not have.
    crawl.site.handlers["/none-index"] = crawl.site.handlers["/gone"]
    with pytest.raises(RunError, match="no URL was found"):
        run(tmp_path, crawl.site, ["a.test"], **CC, crawls=["none"])
    found = run(tmp_path, crawl.site, ["a.test"], **CC, crawls=["CC-MAIN-2024-10"])
    ranges = crawl.site.handlers[f"/{NAME}"]
    crawl.site.handlers[f"/{NAME}"] = lambda h: h.answer(crawl.archive, "binary/octet-stream")
    with pytest.raises(RunError, match=r"none of the 3 pages .* \(http_error 3\); check discover\.archive_server"):
        fetch(tmp_path, crawl, found)  # a server without ranges: the archive itself is not read
    crawl.site.handlers[f"/{NAME}"] = crawl.site.handlers["/broken"]
    with pytest.raises(RunError, match="run again"):
        fetch(tmp_path, crawl, found, max_host_failures=100)
    crawl.site.handlers[f"/{NAME}"] = ranges
    assert fetch(tmp_path, crawl, found).outcome.kept == 3
