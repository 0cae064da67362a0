"""Common Crawl's index and archives, both served over loopback: ranges of a real archive, faults of the servers."""

from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder, Manifest
from tasks.commoncrawl.step import commoncrawl
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.discover.settings import DiscoverSettings
from tasks.sources.index import read_pages
from tests.tasks.discover.site_files import NAME, Crawl, capture, rejected, rows, run, serve_crawl
from tests.tasks.download.fetch_helpers import make_settings
from tests.tasks.web_server import Site

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
