"""Rate limits of hosts: robots.txt, pauses, limits over all shards, and hosts that fail or ask to wait."""

import asyncio
import email.utils
import time
from pathlib import Path
from typing import Any

import pytest

from gpt2train.store.folder import Folder
from tasks.download.fetch import Fetcher
from tasks.download.ledger import Fetched
from tests.tasks.download.fetch_helpers import fetch, make_settings, pages_of, run
from tests.tasks.web_server import Site, ok


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (200, "User-agent: *\nDisallow: /\n\nUser-agent: gpt2train\nAllow: /", ""),
        (200, "\ufeffUser-agent: *\nDisallow: /pa*e", "robots_forbidden"),
        (200, "User-agent: *\nDisallow: /\n#" + "x" * 600_000, "robots_forbidden"),
        (200, "<html>not a robots file</html>", ""),
        (403, "", ""),
        (500, "", "robots_unavailable"),
        (429, "", "robots_unavailable"),
    ],
)
def test_robots_txt_is_obeyed_unless_it_is_ignored(site: Site, status: int, text: str, reason: str) -> None:
    site.robots["a.test"] = (status, text)
    for obey, reasons in ((False, ["", ""]), (True, [reason, reason])):
        pages = fetch(site, ["http://a.test/page", "http://a.test/page?2"], obey_robots=obey)
        assert [page.reason for page in pages] == reasons
        assert site.hits["a.test", "/robots.txt"] == int(obey)


def test_requests_for_robots_txt_pass_the_ssrf_guard(site: Site) -> None:
    site.handlers["/robots.txt"] = site.handlers["/inside"]
    (page,) = fetch(site, ["http://a.test/page"])
    assert (page.reason, page.detail) == ("not_public_address", "169.254.169.254")
    assert site.hits["a.test", "/page"] == 0


def test_crawl_delay_is_obeyed(site: Site) -> None:
    site.robots["a.test"] = (200, "User-agent: *\nCrawl-delay: 0.4")
    fetch(site, ["http://a.test/1", "http://a.test/2"])
    first, second = [at for host, at in site.starts if host == "a.test"][1:]
    assert second - first > 0.1


def test_the_number_of_concurrent_requests_is_capped(site: Site) -> None:
    fetch(site, [f"http://h{n}.test/" for n in range(8)], concurrency=1)
    moments = sorted(at for _, at in site.starts)
    assert len(moments) == 16  # each page and its host's robots.txt
    assert max(site.at_once.values()) == 1


def test_a_slow_host_delays_only_its_own_shard(site: Site, tmp_path: Path) -> None:
    others_came_first: list[bool] = []

    def slow(h: Any) -> None:
        """Answer when the last page of the other shards is requested, or after twenty seconds."""
        end = time.monotonic() + 20
        while not site.hits["h8.test", "/8"] and time.monotonic() < end:
            time.sleep(0.01)
        others_came_first.append(time.monotonic() < end)
        h.answer(b"<p>slow")

    site.handlers["/slow"] = slow
    shards = [["http://slow.test/slow", "http://h.test/0"], *([f"http://h{n}.test/{n}"] for n in range(1, 9))]
    manifest = run(Folder(tmp_path), site, shards, shards_at_once=2, deadline=30)
    assert manifest.outcome.kept == 10
    assert others_came_first == [True]
    assert [page.url for page in pages_of(Folder(tmp_path), manifest)] == [url for shard in shards for url in shard]


def test_limits_of_a_host_hold_across_shards(site: Site, tmp_path: Path) -> None:
    shards = [[f"http://a.test/{shard}-{n}" for n in range(3)] for shard in range(4)]
    run(Folder(tmp_path), site, shards, per_host=1, delay=0.05, shards_at_once=4)
    assert site.at_once["a.test"] == 1
    assert len(site.starts) == 13  # robots.txt is a request like any other
    # Twelve pauses; four shards by themselves would take a quarter. A busy machine may note the first start late.
    assert site.starts[-1][1] - site.starts[0][1] > 0.3
    assert site.hits["a.test", "/robots.txt"] == 1


def test_a_failing_host_is_given_up(site: Site, tmp_path: Path) -> None:
    """Three failures in a row are enough, over all shards."""
    dead = [[f"http://dead.test/broken?{shard}-{n}" for n in range(9)] for shard in (1, 2)]
    shards = [[*urls, f"http://h.test/{shard}"] for shard, urls in enumerate(dead)]
    manifest = run(Folder(tmp_path), site, shards, max_host_failures=3, per_host=1, attempts=1, obey_robots=False)
    assert site.hits["dead.test", "/broken"] == 3  # and not 18
    assert manifest.outcome.reasons == {"http_error": 3, "host_given_up": 15}
    assert manifest.outcome.facts["retryable"] == 18
    assert manifest.outcome.kept == 2


def test_one_good_page_resets_the_failures_of_a_host(site: Site) -> None:
    urls = ["http://a.test/broken", "http://a.test/1", "http://a.test/broken?2", "http://a.test/gone"]
    pages = fetch(site, [*urls, *urls], max_host_failures=2, per_host=1, attempts=1)
    assert [page.reason for page in pages] == ["http_error", "", "http_error", "not_found"] * 2


def test_an_unresolvable_host_is_looked_up_once(site: Site) -> None:
    asked: list[str] = []

    async def lookup(host: str) -> list[str]:
        asked.append(host)
        raise OSError("no such name")

    async def run() -> list[Fetched]:
        async with Fetcher(make_settings(attempts=1), {}, lookup) as fetcher:
            return await asyncio.gather(*(fetcher.fetch(f"http://dead.example/{n}", "list") for n in range(9)))

    pages = asyncio.run(run())
    assert {(page.reason, page.retryable) for page in pages} == {("dns_failed", True)}
    assert asked == ["dead.example"]  # for robots.txt, whose answer applies to all pages


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_host_that_asks_to_wait_gets_no_request_meanwhile(site: Site, form: str) -> None:
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
    assert min(later) - first > 0.5
