"""The download against a server on loopback: each reason, manners towards hosts, order, kill -9 and resume."""

import asyncio
import email.utils
import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError
from tasks.blacklist import URLS
from tasks.download import DownloadSettings, download
from tasks.download.fetch import Fetched, Fetcher, retry_after
from tasks.download.journal import Journal
from tasks.download.ledger import ledgers_of
from tasks.download.tally import tally_hosts
from tasks.download.warc import read_pages
from tasks.runner import Runner
from tasks.shards import read_rows, write_rows
from tasks.steps import Manifest, Outcome, Step, need_manifest
from tasks.storage import Folder
from tests.tasks.corpus import Inline
from tests.tasks.site import PAGE, Site, ok, running_site

QUICK = {"delay": 0.0, "per_host": 8, "backoff": 0.0, "deadline": 1.0, "max_wire_bytes": 100_000, "max_bytes": 2**23}


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


def make_settings(**changes: object) -> DownloadSettings:
    return DownloadSettings.model_validate({**QUICK, "allow_private": ("127.0.0.0/8",), **changes})


def fetch(site: Site, urls: list[str], **changes: object) -> list[Fetched]:
    async def run() -> list[Fetched]:
        async with Fetcher(make_settings(**changes), {"*.test": site.address}) as fetcher:
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


def test_waits_grow_from_one_attempt_to_the_next(site: Site) -> None:
    """Exponential, with jitter: 0.5 to 1.5 times 0.1 s, then twice that."""
    (page,) = fetch(site, ["http://a.test/broken"], obey_robots=False, backoff=0.1, deadline=5)
    first, second, third = [at for _, at in site.starts]
    assert (page.reason, page.attempts) == ("http_error", 3)
    assert second - first > 0.05 and third - second > 0.1


def test_robots_go_through_the_same_guard(site: Site) -> None:
    site.handlers["/robots.txt"] = site.handlers["/inside"]
    (page,) = fetch(site, ["http://a.test/page"])
    assert (page.reason, page.detail) == ("not_public_address", "169.254.169.254")
    assert site.hits["a.test", "/page"] == 0


def test_one_host_at_a_time_and_apart(site: Site) -> None:
    fetch(site, [f"http://a.test/{n}" for n in range(4)] + ["http://b.test/0"], per_host=1, delay=0.1)
    assert site.at_once["a.test"] == 1
    times = [at for host, at in site.starts if host == "a.test"]
    assert len(times) == 5  # robots.txt is a request like any other
    assert times[-1] - times[0] > 0.35  # four pauses; a busy machine may note one start late


def test_crawl_delay_counts(site: Site) -> None:
    site.robots["a.test"] = (200, "User-agent: *\nCrawl-delay: 0.4")
    fetch(site, ["http://a.test/1", "http://a.test/2"])
    first, second = [at for host, at in site.starts if host == "a.test"][1:]
    assert second - first > 0.25


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
        async with Fetcher(make_settings(), connect_to) as fetcher:
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
    ledger = [row for record in ledgers_of(manifest.outcome.audit) for row in read_rows(root / "pages", record.name)]
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
    """kill -9 in the midst of the shards: what was fetched is not asked for again, and the content is the same."""
    shards = [[f"http://a.test/{shard}-{n}" for n in range(9)] for shard in range(2)]

    def child(root: Path) -> "subprocess.Popen[str]":
        make_urls(Folder(root), shards)
        command = [sys.executable, "-c", CHILD, str(root), site.address]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)

    straight, _ = child(tmp_path / "straight").communicate(timeout=60)
    site.hits.clear()
    victim = child(tmp_path / "killed")
    while not site.hits["a.test", "/1-3"]:
        time.sleep(0.01)
        assert victim.poll() is None
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    assert not (tmp_path / "killed" / "pages" / "_manifest.json").exists()
    assert site.hits["a.test", "/1-8"] == 0
    again, _ = child(tmp_path / "killed").communicate(timeout=60)
    assert again == straight
    pages = Counter({path: count for (_, path), count in site.hits.items() if path != "/robots.txt"})
    assert len(pages) == 18
    assert pages.total() <= 19  # the one that was in flight may be asked for again
    assert not (tmp_path / "killed" / "pages" / "_journal").exists()


# Several shards over one event loop.


def test_a_slow_host_holds_back_its_own_shard_alone(site: Site, tmp_path: Path) -> None:
    others_came_first: list[bool] = []

    def slow(h: Any) -> None:
        """Answers when the last page of the other shards was asked for, or after five seconds."""
        end = time.monotonic() + 5
        while not site.hits["h8.test", "/8"] and time.monotonic() < end:
            time.sleep(0.01)
        others_came_first.append(time.monotonic() < end)
        h.answer(b"<p>slow")

    site.handlers["/slow"] = slow
    shards = [["http://slow.test/slow", "http://h.test/0"], *([f"http://h{n}.test/{n}"] for n in range(1, 9))]
    manifest = run(Folder(tmp_path), site, shards, shards_at_once=2, deadline=30)
    assert manifest.outcome.kept == 10
    assert others_came_first == [True]
    pages = [page.url for r in manifest.outputs for page in read_pages(Folder(tmp_path) / "pages", r.name)]
    assert pages == [url for shard in shards for url in shard]


def test_limits_per_host_hold_over_all_shards(site: Site, tmp_path: Path) -> None:
    shards = [[f"http://a.test/{shard}-{n}" for n in range(3)] for shard in range(4)]
    run(Folder(tmp_path), site, shards, per_host=1, delay=0.05, shards_at_once=4)
    assert site.at_once["a.test"] == 1
    assert len(site.starts) == 13
    assert site.starts[-1][1] - site.starts[0][1] > 0.5  # twelve pauses; four shards by themselves would take a quarter
    assert site.hits["a.test", "/robots.txt"] == 1


def test_a_host_that_keeps_failing_is_given_up(site: Site, tmp_path: Path) -> None:
    """Each page of a dead host costs a deadline; three of them are enough, over all shards."""
    site.handlers["/hangs"] = lambda h: time.sleep(2)
    shards = [
        [f"http://dead.test/hangs?{shard}-{n}" for n in range(9)] + [f"http://h.test/{shard}"] for shard in (1, 2)
    ]
    begin = time.monotonic()
    manifest = run(Folder(tmp_path), site, shards, give_up=3, per_host=1, deadline=0.6, obey_robots=False)
    assert time.monotonic() - begin < 8  # and not 18 deadlines
    assert site.hits["dead.test", "/hangs"] == 3
    assert manifest.outcome.reasons == {"deadline": 3, "host_given_up": 15}
    assert manifest.outcome.facts["retryable"] == 18
    assert manifest.outcome.kept == 2


def test_one_good_page_clears_a_host(site: Site) -> None:
    urls = ["http://a.test/broken", "http://a.test/1", "http://a.test/broken?2", "http://a.test/gone"]
    pages = fetch(site, [*urls, *urls], give_up=2, per_host=1, attempts=1)
    assert [page.reason for page in pages] == ["http_error", "", "http_error", "not_found"] * 2


def test_a_dead_name_costs_one_look_up(site: Site) -> None:
    asked: list[str] = []

    async def lookup(host: str) -> list[str]:
        asked.append(host)
        raise OSError("no such name")

    async def run() -> list[Fetched]:
        async with Fetcher(make_settings(attempts=1), {}, lookup) as fetcher:
            return await asyncio.gather(*(fetcher.fetch(f"http://dead.example/{n}", "list") for n in range(9)))

    pages = asyncio.run(run())
    assert {(page.reason, page.retryable) for page in pages} == {("dns_failed", True)}
    assert asked == ["dead.example"]  # for robots.txt, whose answer stands for all pages


# Asking again for what failed.


def test_retry_failed_asks_for_what_may_pass_and_for_nothing_else(site: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    site.handlers["/flaky"] = site.handlers["/broken"]
    shards = [
        ["http://a.test/1", "http://a.test/flaky", "http://a.test/gone"],
        ["http://a.test/2"],
        ["http://b.test/flaky"],
    ]
    first = run(root, site, shards)
    assert first.outcome.reasons == {"http_error": 2, "not_found": 1}
    before = {name: (root / "pages").read_bytes(name) for name in (root / "pages").files()}

    site.hits.clear()
    urls = need_manifest(root / "urls")
    assert download(root, urls, make_settings(), Inline(1), {"*.test": site.address}) == first
    assert not site.hits

    def heals_on_a(h: Any) -> None:
        ok(h) if h.headers["Host"] == "a.test" else h.answer(b"", status=500)

    site.handlers["/flaky"] = heals_on_a
    runner = Inline(1)
    second = download(root, urls, make_settings(), runner, {"*.test": site.address}, retry_failed=True)
    assert "download" not in runner.skipped
    assert {path for _, path in site.hits} == {"/robots.txt", "/flaky"}
    assert (second.fingerprint, second.outcome.kept) == (first.fingerprint, 3)
    assert second.content != first.content
    assert second.outcome.reasons == {"http_error": 1, "not_found": 1}
    pages = [page.url for r in second.outputs for page in read_pages(root / "pages", r.name)]
    assert pages == ["http://a.test/1", "http://a.test/flaky", "http://a.test/2"]
    ledger = [row for r in ledgers_of(second.outcome.audit) for row in read_rows(root / "pages", r.name)]
    assert [row["reason"] for row in ledger] == ["", "", "not_found", "", "http_error"]
    rejected = [row["url"] for r in second.outcome.rejected for row in read_rows(root / "pages", r.name)]
    assert rejected == ["http://a.test/gone", "http://b.test/flaky"]
    left = (root / "pages").files()
    assert (
        "part-00001.warc.gz" in left
        and (root / "pages").read_bytes("part-00001.warc.gz") == before["part-00001.warc.gz"]
    )
    assert set(left) == {"_manifest.json", *(record.name for record in second.outcome.files)}

    # The new state is what a run without the option finds done, and what the next round starts from.
    assert download(root, urls, make_settings(), Inline(1), {"*.test": site.address}) == second
    site.handlers["/flaky"] = ok
    third = download(root, urls, make_settings(), Inline(1), {"*.test": site.address}, retry_failed=True)
    assert (third.outcome.kept, third.outcome.reasons) == (4, {"not_found": 1})
    assert "part-00002.retry-2.warc.gz" in [record.name for record in third.outputs]
    site.hits.clear()
    runner = Inline(1)
    assert download(root, urls, make_settings(), runner, {"*.test": site.address}, retry_failed=True) == third
    assert runner.skipped == {"download"} and not site.hits


def test_a_retry_that_is_cut_short_leaves_the_download_whole(site: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    site.handlers["/flaky"] = site.handlers["/broken"]
    first = run(root, site, [["http://a.test/1", "http://a.test/flaky"], ["http://a.test/flaky?2"]])
    urls = need_manifest(root / "urls")
    site.handlers["/flaky"] = ok

    class Cut(Exception):
        pass

    def cut(*_: object, **__: object) -> None:
        raise Cut

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        patch.setattr("tasks.steps.Step.commit", cut)
        download(root, urls, make_settings(), Inline(1), {"*.test": site.address}, retry_failed=True)
    assert download(root, urls, make_settings(), Inline(1), {"*.test": site.address}) == first
    site.hits.clear()
    done = download(root, urls, make_settings(), Inline(1), {"*.test": site.address}, retry_failed=True)
    assert (done.outcome.kept, done.outcome.reasons) == (3, {})
    assert not site.hits  # its shards were committed
    assert [page.url for r in done.outputs for page in read_pages(root / "pages", r.name)][1:] == [
        "http://a.test/flaky",
        "http://a.test/flaky?2",
    ]


def test_hosts_are_told_apart(site: Site, tmp_path: Path) -> None:
    shards = [
        ["http://a.test/1", "http://a.test/gone", "http://b.test/broken"],
        ["http://A.test/2", "http://b.test/gone"],
    ]
    manifest = run(Folder(tmp_path), site, shards, attempts=1)
    folder = Folder(tmp_path) / "pages"
    (record,) = [record for record in manifest.outcome.audit if record.name == "hosts.parquet"]
    rows = list(read_rows(folder, record.name))
    assert [(r["host"], r["urls"], r["ok"], r["failed"], r["top_reason"]) for r in rows] == [
        ("b.test", 2, 0, 2, "http_error"),
        ("a.test", 3, 2, 1, "not_found"),
    ]
    bounded = tally_hosts(folder, ledgers_of(manifest.outcome.audit), known=1).to_pylist()
    assert [(row["host"], row["urls"], row["failed"]) for row in bounded] == [("b.test", 2, 2), ("(other hosts)", 3, 1)]


# What is asked, and how.


def test_addresses_in_every_writing(site: Site) -> None:
    port = site.address.rpartition(":")[2]
    urls = [
        "http://b\u00fccher.test/p\u00e4ge?q=\u00e4",
        "http://me:secret@a.test/page",
        f"http://127.0.0.1:{port}/page",
    ]
    pages = fetch(site, urls, ports=(80, int(port)))
    assert [page.reason for page in pages] == ["", "", ""]
    assert pages[0].final_url == "http://xn--bcher-kva.test/p%C3%A4ge?q=%C3%A4"
    assert site.hits["xn--bcher-kva.test", "/p%C3%A4ge"] == 1
    assert site.hits[f"127.0.0.1:{port}", "/page"] == 1
    assert {page.ip for page in pages} == {"127.0.0.1"}


def test_an_address_of_version_six() -> None:
    try:
        with running_site("::1") as site:
            port = site.address.rpartition(":")[2]
            settings = {"ports": (int(port),), "allow_private": ("::1/128",)}
            (page, refused) = fetch(site, [f"http://[::1]:{port}/page", f"http://[::1]:{int(port) + 1}/"], **settings)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    assert (page.reason, page.ip) == ("", "::1")
    assert refused.reason == "port_forbidden"


def test_headers_of_a_request(site: Site) -> None:
    seen: list[dict[str, str]] = []
    site.handlers["/look"] = lambda h: (seen.append(dict(h.headers)), ok(h))[1]
    fetch(site, ["http://me:secret@a.test/look"])
    (headers,) = seen
    assert headers["Accept-Encoding"] == "gzip, deflate"  # what is decoded within bounds, and no brotli
    assert headers["User-Agent"].startswith("gpt2train/")
    assert not {"Authorization", "Cookie"} & set(headers)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_host_that_asks_to_wait_is_left_alone(site: Site, form: str) -> None:
    """429 with Retry-After on one page: the host's other pages wait too."""

    def busy(h: Any) -> None:
        if h.site.hits["a.test", "/busy"] > 1:
            return ok(h)
        date = email.utils.formatdate(time.time() + 2, usegmt=True)  # whole seconds: 1 to 2
        return h.answer(b"", status=429, Retry_After="1" if form == "seconds" else date)

    site.handlers["/busy"] = busy
    pages = fetch(site, ["http://a.test/busy", "http://a.test/other"], per_host=1, obey_robots=False)
    assert [(page.reason, page.attempts) for page in pages] == [("", 2), ("", 1)]
    first, *later = [at for _, at in site.starts]
    assert min(later) - first > 0.8


# The journal.


def test_a_journal_that_is_cut_anywhere_keeps_what_is_whole(tmp_path: Path) -> None:
    urls = [f"http://a.test/{n}" for n in range(3)]
    records = [gzip.compress(b"page" * n) for n in (1, 2)]
    with Journal(tmp_path / "j", "key", urls) as journal:
        journal.add(2, {"url": urls[2]}, records[0])
        journal.add(0, {"url": urls[0]}, b"")
        journal.add(1, {"url": urls[1]}, records[1])
    rows, pages = (tmp_path / "j.rows").read_bytes(), (tmp_path / "j.pages").read_bytes()
    ends = [rows.index(b"\n") + 1]
    while ends[-1] < len(rows):
        ends.append(rows.index(b"\n", ends[-1]) + 1)
    orders = [set(), {2}, {2, 0}, {2, 0, 1}]
    for cut in sorted({0, *ends, *(end - 1 for end in ends), *range(1, len(rows), 9)}):
        (tmp_path / "j.rows").write_bytes(rows[:cut])
        (tmp_path / "j.pages").write_bytes(pages)
        with Journal(tmp_path / "j", "key", urls) as journal:
            assert journal.done == orders[max(0, sum(end <= cut for end in ends) - 1)]
            for index in {0, 1, 2} - journal.done:
                journal.add(index, {"url": urls[index]}, records[0])
            found = journal.rows()
            assert [row["url"] for row, _, _ in found] == urls
            assert all(gzip.decompress(journal.page(*at) or gzip.compress(b"")) is not None for _, *at in found)
    (tmp_path / "j.rows").write_bytes(rows)
    (tmp_path / "j.pages").write_bytes(pages[:-1])  # as after a power cut: the row is there, its page is not
    with Journal(tmp_path / "j", "key", urls) as journal:
        assert journal.done == {2, 0}
    for key, other in (("else", urls), ("key", urls[::-1])):
        with Journal(tmp_path / "j", key, other) as journal:
            assert journal.done == set()


HEAVY = """
import resource, sys
from tasks.download import DownloadSettings, download
from tasks.steps import need_manifest
from tasks.storage import Folder
from tests.tasks.corpus import Inline
root, address = Folder(sys.argv[1]), sys.argv[2]
settings = DownloadSettings(delay=0, per_host=4, allow_private=("127.0.0.0/8",))
manifest = download(root, need_manifest(root / "urls"), settings, Inline(1), {"*.test": address})
print(manifest.outcome.kept, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_pages(site: Site, tmp_path: Path) -> None:
    """200 MB of pages in two shards: the process stays within 100 MB of one that fetches two pages."""
    site.handlers["/large"] = lambda h: h.answer(b"<p>" + os.urandom(400_000), "text/html")

    def peak(pages: int) -> int:
        shards = [[f"http://h{n % 16}.test/large?{shard}-{n}" for n in range(pages)] for shard in range(2)]
        root = tmp_path / str(pages)
        make_urls(Folder(root), shards)
        command = [sys.executable, "-c", HEAVY, str(root), site.address]
        kept, mib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert int(kept) == 2 * pages
        return int(mib)

    assert peak(250) - peak(1) < 100
