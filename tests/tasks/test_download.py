"""The download against a server on loopback: each reason, manners towards hosts, order, kill -9 and resume."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError
from tasks.blacklist import URLS
from tasks.download import DownloadSettings, download
from tasks.download.fetch import Fetched, Fetcher, retry_after
from tasks.download.hosts import HostMemory
from tasks.download.warc import read_pages
from tasks.runner import Runner
from tasks.shards import read_rows, write_rows
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder
from tests.tasks.site import PAGE, Site, running_site

QUICK = {"delay": 0.0, "per_host": 8, "backoff": 0.0, "deadline": 1.0, "max_wire_bytes": 100_000, "max_bytes": 2**23}


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


def make_settings(**changes: object) -> DownloadSettings:
    return DownloadSettings.model_validate({**QUICK, "allow_private": ("127.0.0.0/8",), **changes})


def fetch(site: Site, urls: list[str], **changes: object) -> list[Fetched]:
    async def run() -> list[Fetched]:
        async with Fetcher(make_settings(**changes), {"*.test": site.address}, HostMemory()) as fetcher:
            return await asyncio.gather(*(fetcher.fetch(url, "list") for url in urls))

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "reason", "retryable", "status"),
    [
        ("page", "", False, 200),
        ("heals", "", False, 200),
        ("hop1", "", False, 200),
        ("gzip", "", False, 200),
        ("gzip-members", "", False, 200),
        ("deflate", "", False, 200),
        ("raw-deflate", "", False, 200),
        ("xhtml", "", False, 200),
        ("gone", "not_found", False, 404),
        ("forbidden", "http_error", False, 403),
        ("broken", "http_error", True, 500),
        ("later", "http_error", True, 429),
        ("cut", "connection_failed", True, 200),
        ("nonsense", "connection_failed", True, None),
        ("loop1", "redirect_loop", False, 302),
        ("chain", "too_many_redirects", False, 302),
        ("inside", "not_public_address", False, None),
        ("file", "scheme_forbidden", False, None),
        ("other-port", "port_forbidden", False, None),
        ("to-private", "robots_forbidden", False, None),
        ("bad-target", "malformed", False, 302),
        ("private/x", "robots_forbidden", False, None),
        ("drip", "deadline", True, 200),
        ("endless", "too_large", False, 200),
        ("announced", "too_large", False, 200),
        ("bomb", "compression_ratio", False, 200),
        ("no-gzip", "content_encoding", False, 200),
        ("cut-gzip", "content_encoding", True, 200),
        ("brotli", "content_encoding", False, 200),
        ("image", "content_type", False, 200),
        ("no-type", "content_type", False, 200),
    ],
)
def test_each_reason(site: Site, path: str, reason: str, retryable: bool, status: int | None) -> None:
    site.robots["a.test"] = (200, "User-agent: gpt2train\nDisallow: /private/")
    (page,) = fetch(site, [f"http://a.test/{path}"])
    assert (page.reason, page.retryable, page.http_status) == (reason, retryable, status), page
    assert page.body == (None if reason else PAGE)
    assert len(page.fetched_at) == 20


def test_facts_of_a_page(site: Site) -> None:
    site.handlers["/xhtml2"] = site.handlers["/xhtml"]
    (page, hopped) = fetch(site, ["http://me:secret@a.test/xhtml2#part", "http://a.test/hop1"])
    assert (page.url, page.final_url) == ("http://me:secret@a.test/xhtml2#part", "http://a.test/xhtml2")
    assert (page.content_type, page.charset, page.attempts) == ("application/xhtml+xml", "iso-8859-1", 1)
    assert hopped.final_url == "http://a.test/page"
    assert hopped.charset == "utf-8"


def test_attempts_are_counted_and_capped(site: Site) -> None:
    (page,) = fetch(site, ["http://a.test/broken"], attempts=4)
    assert page.attempts == 4
    assert site.hits["a.test", "/broken"] == 4
    (page,) = fetch(site, ["http://a.test/later"])
    assert page.attempts == 1


def test_one_host_at_a_time_and_apart(site: Site) -> None:
    fetch(site, [f"http://a.test/{n}" for n in range(4)] + ["http://b.test/0"], per_host=1, delay=0.1)
    assert site.at_once["a.test"] == 1
    times = [at for host, at in site.starts if host == "a.test"]
    assert len(times) == 5  # robots.txt is a request like any other
    assert min(later - sooner for sooner, later in itertools.pairwise(times)) > 0.09


def test_crawl_delay_counts(site: Site) -> None:
    site.robots["a.test"] = (200, "User-agent: *\nCrawl-delay: 0.2")
    fetch(site, ["http://a.test/1", "http://a.test/2"])
    first, second = [at for host, at in site.starts if host == "a.test"][1:]
    assert second - first > 0.19


def test_all_hosts_together_are_capped(site: Site) -> None:
    fetch(site, [f"http://h{n}.test/" for n in range(8)], concurrency=1)
    moments = sorted(at for _, at in site.starts)
    assert len(moments) == 16  # each page and its host's robots.txt
    assert max(site.at_once.values()) == 1


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (200, "User-agent: *\nDisallow: /", "robots_forbidden"),
        (200, "User-agent: *\nDisallow: /\n\nUser-agent: gpt2train\nAllow: /", ""),
        (200, "\ufeffUser-agent: *\nDisallow: /pa*e", "robots_forbidden"),
        (200, "User-agent: *\nDisallow: /\n#" + "x" * 600_000, "robots_forbidden"),
        (200, "<html>not a robots file</html>", ""),
        (403, "", ""),
        (500, "", "robots_unavailable"),
        (429, "", "robots_unavailable"),
    ],
)
def test_robots(site: Site, status: int, text: str, reason: str) -> None:
    site.robots["a.test"] = (status, text)
    pages = fetch(site, ["http://a.test/page", "http://a.test/page?2"])
    assert [page.reason for page in pages] == [reason, reason]
    assert site.hits["a.test", "/robots.txt"] == 1


def test_robots_can_be_turned_off(site: Site) -> None:
    site.robots["a.test"] = (200, "User-agent: *\nDisallow: /")
    (page,) = fetch(site, ["http://a.test/page"], obey_robots=False)
    assert page.reason == ""
    assert site.hits["a.test", "/robots.txt"] == 0


def test_nothing_there(site: Site) -> None:
    async def run() -> list[str]:
        connect_to = {"closed.test": "127.0.0.1:1"}
        async with Fetcher(make_settings(), connect_to, HostMemory()) as fetcher:
            urls = ["http://closed.test/", "http://nosuchhost.invalid/", "http://a.test:99999/"]
            return [(await fetcher.fetch(url, "list")).reason for url in urls]

    assert asyncio.run(run()) == ["connection_failed", "dns_failed", "malformed"]


def test_retry_after() -> None:
    assert retry_after("7") == 7.0
    assert retry_after("Mon, 01 Jan 2001 00:00:00 GMT") == 0.0
    assert retry_after("soon") is None
    assert retry_after(None) is None


# The step.


def make_urls(root: Folder, shards: list[list[str]]) -> Manifest:
    step = Step(root, "blacklist", version=1, parameters={}, inputs={}, folder="urls")
    records = tuple(
        write_rows(step.folder, f"part-{n:05d}.parquet", [{"url": u, "source": "list.txt"} for u in shard], URLS)
        for n, shard in enumerate(shards)
    )
    return step.commit(Outcome(outputs=records))


def run(root: Folder, site: Site, shards: list[list[str]], workers: int = 1, **changes: Any) -> Manifest:
    with Runner(workers) as runner:
        settings = make_settings(**changes)
        return download(root, make_urls(root, shards), settings, runner, {"*.test": site.address})


def test_pages_stand_in_the_order_of_the_list(site: Site, tmp_path: Path) -> None:
    def slow_first(h: Any) -> None:
        time.sleep(0.3)
        h.answer(b"<p>slow")

    site.handlers["/slow"] = slow_first
    root = Folder(tmp_path)
    shards = [["http://a.test/slow", "http://a.test/gone", "http://a.test/2"], ["http://a.test/image"]]
    manifest = run(root, site, shards)
    pages = [page for record in manifest.outputs for page in read_pages(root / "pages", record.name)]
    assert [page.url for page in pages] == ["http://a.test/slow", "http://a.test/2"]
    assert {page.source for page in pages} == {"list.txt"}
    ledger = [row for record in manifest.outcome.audit for row in read_rows(root / "pages", record.name)]
    assert [row["url"] for row in ledger] == [url for shard in shards for url in shard]
    assert [row["status"] for row in ledger] == ["ok", "failed", "ok", "failed"]
    assert [row["sha256"] for row in ledger if row["sha256"]] == [page.sha256 for page in pages]
    rejected = [row for record in manifest.outcome.rejected for row in read_rows(root / "pages", record.name)]
    assert [row["reason"] for row in rejected] == ["not_found", "content_type"]
    assert manifest.outcome.reasons == {"content_type": 1, "not_found": 1}
    assert (manifest.outcome.seen, manifest.outcome.kept) == (4, 2)
    assert site.hits["a.test", "/robots.txt"] == 1  # once for both shards


def test_content_does_not_depend_on_times_or_workers(site: Site, tmp_path: Path) -> None:
    shards = [[f"http://h{n}.test/{m}" for m in range(3)] for n in range(3)]
    first = run(Folder(tmp_path / "a"), site, shards)
    time.sleep(1.1)  # WARC dates are whole seconds
    second = run(Folder(tmp_path / "b"), site, shards, workers=2)
    assert first.identity == second.identity
    assert [r.sha256 for r in first.outputs] != [r.sha256 for r in second.outputs]
    site.handlers["/2"] = lambda h: h.answer(b"<p>changed")
    third = run(Folder(tmp_path / "c"), site, shards)
    assert third.fingerprint == first.fingerprint
    assert third.content != first.content


def test_nothing_fetched_is_an_error_and_is_not_believed_later(site: Site, tmp_path: Path) -> None:
    site.handlers["/x"] = site.handlers["/broken"]
    with pytest.raises(RunError, match=r"none of the 1 pages could be fetched \(http_error 1\)"):
        run(Folder(tmp_path), site, [["http://a.test/x"]])
    del site.handlers["/x"]
    assert run(Folder(tmp_path), site, [["http://a.test/x"]]).outcome.kept == 1


def test_a_stopped_download_ends_soon(site: Site, tmp_path: Path) -> None:
    runner = Runner(1)
    threading.Timer(0.5, runner.stopping.set).start()
    urls = make_urls(Folder(tmp_path), [["http://a.test/drip"]])
    begin = time.monotonic()
    with pytest.raises(RunError, match="run again"):
        download(Folder(tmp_path), urls, make_settings(deadline=60), runner, {"*.test": site.address})
    assert time.monotonic() - begin < 3


CHILD = """
import sys
from tasks.download import DownloadSettings, download
from tasks.runner import Runner
from tasks.steps import need_manifest
from tasks.storage import Folder
root, address = Folder(sys.argv[1]), sys.argv[2]
settings = DownloadSettings(delay=0.05, allow_private=("127.0.0.0/8",))
with Runner(1) as runner:
    print(download(root, need_manifest(root / "urls"), settings, runner, {"*.test": address}).identity)
"""


def test_killed_in_the_middle_and_run_again(site: Site, tmp_path: Path) -> None:
    """kill -9 once half of the shards are fetched: they are not asked for again, and the content is the same."""
    shards = [[f"http://a.test/{shard}-{n}" for n in range(3)] for shard in range(6)]

    def child(root: Path) -> "subprocess.Popen[str]":
        make_urls(Folder(root), shards)
        command = [sys.executable, "-c", CHILD, str(root), site.address]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)

    straight, _ = child(tmp_path / "straight").communicate(timeout=60)
    site.hits.clear()
    victim = child(tmp_path / "killed")
    while not site.hits["a.test", "/3-1"]:
        time.sleep(0.01)
        assert victim.poll() is None
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    assert not (tmp_path / "killed" / "pages" / "_manifest.json").exists()
    again, _ = child(tmp_path / "killed").communicate(timeout=60)
    assert again == straight
    assert site.hits["a.test", "/0-0"] == site.hits["a.test", "/2-2"] == 1
    assert site.hits["a.test", "/3-0"] == 2
