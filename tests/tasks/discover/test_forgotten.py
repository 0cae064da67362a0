"""A discovery after a removal: forgotten pages and domains are not requested."""

from pathlib import Path

import pytest

from gpt2train.errors import RunError
from tasks.core.forgotten import FORGOTTEN, Forgotten, domain_hash, encode_forgotten, name_of, url_hash
from tests.tasks.discover.site_files import index, rejected, run, serve, urls, urlset
from tests.tasks.web_server import Site

A = "http://a.test"
LISTED = Forgotten(
    urls=tuple(sorted(map(url_hash, (f"{A}/secret", f"{A}/map.xml")))), domains=(domain_hash("gone.test"),)
)


def test_forgotten_pages_are_not_requested(site: Site, tmp_path: Path) -> None:
    (tmp_path / FORGOTTEN).write_bytes(encode_forgotten(LISTED))
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
    assert sorted(rejected(tmp_path, found)) == sorted(
        (name_of(url), "forgotten") for url in (f"{A}/secret", f"{A}/map.xml", "http://gone.test/")
    )


def test_a_forgotten_domain_alone_has_no_url(site: Site, tmp_path: Path) -> None:
    (tmp_path / FORGOTTEN).write_bytes(encode_forgotten(LISTED))
    with pytest.raises(RunError, match=r"no URL was found for 1 domain \(forgotten 1\)"):
        run(tmp_path, site, ["www.gone.test"], methods=["sitemaps", "links"])
    assert not site.hits
