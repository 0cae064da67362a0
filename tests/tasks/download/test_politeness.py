"""Rate limits of hosts: robots.txt, pauses, limits over all shards and over all downloads of one machine."""

import asyncio
import email.utils
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from tasks.download import shared_rate_limit
from tasks.download.fetch import Fetcher
from tasks.download.ledger import Fetched
from tasks.download.shared_rate_limit import FILE, SharedRateLimiter, open_rate_limiter, record_index
from tests.processes import wait_for
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
        asked = 3 if status in (429, 500) else 1  # a busy server gets the attempts of a page
        assert site.hits["a.test", "/robots.txt"] == asked * obey


def test_one_refusal_of_a_file_of_the_site_does_not_lose_its_pages(site: Site) -> None:
    """The first answer is 503 for each of them, as of a server that restarts."""

    def restarting(text: str) -> Callable[[Any], None]:
        def answer(h: Any) -> None:
            first = h.site.hits[h.headers["Host"], h.path] == 1
            h.answer(text.encode(), "text/plain", 503 if first else 200, Retry_After="0")

        return answer

    site.handlers["/robots.txt"] = restarting("User-agent: *\nDisallow: /secret")
    site.handlers["/.well-known/tdmrep.json"] = restarting('[{"location": "/kept", "tdm-reservation": 1}]')
    urls = ["http://a.test/page", "http://a.test/secret", "http://a.test/kept"]
    pages = fetch(site, urls, consent={"honour": ["tdm_reservation"]})
    assert [page.reason for page in pages] == ["", "robots_forbidden", "tdm_reservation"]


def test_crawl_delay_is_obeyed_and_robots_txt_passes_the_ssrf_guard(site: Site) -> None:
    def pause(name: str) -> float:
        site.robots[name] = (200, "User-agent: *\nCrawl-delay: 0.4")
        fetch(site, [f"http://{name}/1", f"http://{name}/2"])
        first, second = [at for host, at in site.starts if host == name][1:]
        return second - first

    # A busy machine may note the first of the two late.
    assert any(pause(name) > 0.1 for name in ("b.test", "c.test", "d.test"))
    site.handlers["/robots.txt"] = site.handlers["/inside"]
    (page,) = fetch(site, ["http://a.test/page"])
    assert (page.reason, page.detail) == ("not_public_address", "169.254.169.254")
    assert site.hits["a.test", "/page"] == 0


def test_the_number_of_concurrent_requests_is_capped(site: Site) -> None:
    fetch(site, [f"http://h{n}.test/" for n in range(8)], concurrency=1)
    moments = sorted(at for _, at in site.starts)
    assert len(moments) == 16  # each page and its host's robots.txt
    assert max(site.at_once.values()) == 1


def test_a_slow_host_delays_only_its_own_shard(site: Site, tmp_path: Path) -> None:
    others_came_first: list[bool] = []

    def slow(h: Any) -> None:
        """Answer when the last page of the other shards is requested, or after a minute."""
        end = time.monotonic() + 60
        while not site.hits["h8.test", "/8"] and time.monotonic() < end:
            time.sleep(0.01)
        others_came_first.append(time.monotonic() < end)
        h.answer(b"<p>slow")

    site.handlers["/slow"] = slow
    shards = [["http://slow.test/slow", "http://h.test/0"], *([f"http://h{n}.test/{n}"] for n in range(1, 9))]
    manifest = run(Folder(tmp_path), site, shards, shards_at_once=2, deadline=120)
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


def test_a_failing_host_is_given_up_unless_one_page_is_good(site: Site, tmp_path: Path) -> None:
    """Three failures in a row are enough, over all shards."""
    dead = [[f"http://dead.test/broken?{shard}-{n}" for n in range(9)] for shard in (1, 2)]
    shards = [[*urls, f"http://h.test/{shard}"] for shard, urls in enumerate(dead)]
    manifest = run(Folder(tmp_path), site, shards, max_host_failures=3, per_host=1, attempts=1, obey_robots=False)
    assert site.hits["dead.test", "/broken"] == 3  # and not 18
    assert manifest.outcome.reasons == {"http_error": 3, "host_given_up": 15}
    assert (manifest.outcome.facts["retryable"], manifest.outcome.kept) == (18, 2)
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


CRAWLS = """
import asyncio, json, sys
from tasks.download.fetch import Fetcher
from tasks.download.settings import DownloadSettings
settings, address, urls = map(json.loads, sys.argv[1:])
async def run():
    async with Fetcher(DownloadSettings.model_validate(settings), {"*.test": address}) as fetcher:
        print("ready", flush=True)
        sys.stdin.readline()
        pages = await asyncio.gather(*(fetcher.fetch(url, "list") for url in urls))
    print([page.reason for page in pages])
asyncio.run(run())
"""


def crawl(site: Site, *lists: list[str], **changes: Any) -> "list[subprocess.Popen[str]]":
    """Processes that begin to fetch their URLs once all are ready."""
    settings = make_settings(per_host=1, obey_robots=False, **changes).model_dump_json()
    commands = [[sys.executable, "-c", CRAWLS, settings, f'"{site.address}"', json.dumps(urls)] for urls in lists]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes: list[Any] = [subprocess.Popen(command, **streams) for command in commands]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * len(lists)
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return processes


def test_two_processes_share_the_delay_of_a_host(site: Site, tmp_path: Path) -> None:
    lists = [[f"http://a.test/{name}{n}" for n in range(5)] for name in "xy"]
    together = crawl(site, *lists, shared_rate_limit_dir=str(tmp_path), delay=0.3)
    assert [process.communicate()[0] for process in together] == [f"{[''] * 5}\n"] * 2
    times = sorted(at for _, at in site.starts)
    assert len(times) == 10
    # Nine pauses; each by itself would take four of them, 1.2. A busy machine may note the first ones late.
    assert times[-1] - times[0] > 1.5


def test_the_slot_of_a_killed_process_is_freed(site: Site, tmp_path: Path) -> None:
    site.handlers["/hangs"] = lambda h: time.sleep(60)
    [killed] = crawl(site, ["http://a.test/hangs"], shared_rate_limit_dir=str(tmp_path), deadline=50)
    wait_for(lambda: site.hits["a.test", "/hangs"] == 1, 60, "the first request")
    [waits] = crawl(site, ["http://a.test/1", "http://c.test/1"], shared_rate_limit_dir=str(tmp_path))
    wait_for(lambda: site.hits["c.test", "/1"] == 1, 60, "a page of another host")
    assert site.hits["a.test", "/1"] == 0
    killed.kill()
    killed.wait()
    assert waits.communicate()[0] == "['', '']\n"
    assert site.hits["a.test", "/1"] == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A wall clock that only the test advances."""
    held = SimpleNamespace(now=1_800_000_000.0)
    monkeypatch.setattr(shared_rate_limit, "time", SimpleNamespace(time=lambda: held.now))
    return held


Two = tuple[SharedRateLimiter, SharedRateLimiter]


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    """Two objects that simulate two processes: POSIX locks belong to a process, so theirs checks ours."""
    ours, theirs = SharedRateLimiter(tmp_path), SharedRateLimiter(tmp_path)
    theirs._pid = ours._pid + 1
    monkeypatch.setattr(theirs, "_lock", lambda at: at not in ours._held)
    return ours, theirs


def take(limiter: SharedRateLimiter, host: str = "a") -> Any:
    slot = limiter.acquire(host, 1)
    assert slot is not None
    return slot


def test_a_waiting_process_goes_first(two: Two, clock: SimpleNamespace) -> None:
    ours, theirs = two
    slot = take(ours)
    assert theirs.acquire("a", 1) is None
    ours.release(slot)
    clock.now += 0.4
    assert ours.acquire("a", 1) is None  # though it is free
    take(ours, "b")
    theirs.release(take(theirs))
    again = take(ours)
    assert ours.acquire("a", 1) is None  # the one slot is ours: no process waits
    ours.release(again)
    take(theirs)


def test_a_waiting_process_goes_first_at_any_clock_value(two: Two, clock: SimpleNamespace) -> None:
    """At the same instant, with a clock slightly behind, when a timestamp wraps around; but not a second later."""
    ours, theirs = two
    begins_anew = 2**32 * 420 / 1000
    for n in range(200):
        tried = (1_800_000_000.0, begins_anew - 0.5)[n % 2] + n / 199
        clock.now = tried
        slot = take(ours)
        assert theirs.acquire("a", 1) is None
        ours.release(slot)
        for later in 0.0, -0.05, 0.4:
            clock.now = tried + later
            assert ours.acquire("a", 1) is None
        clock.now = tried + 1.0
        ours.release(take(ours))


@pytest.mark.usefixtures("clock")
def test_each_host_has_a_schedule_of_its_own(tmp_path: Path) -> None:
    one = SharedRateLimiter(tmp_path)
    assert record_index("a") != record_index("b")
    assert one.reserve("a", 5.0) == 0.0
    assert 4.0 < one.reserve("a", 5.0) <= 5.0
    assert one.reserve("b", 5.0) == 0.0
    one.delay_host("b", 30.0)
    assert 28.0 < one.reserve("b", 0.0) <= 30.0
    one.delay_host("c", 10 * shared_rate_limit.MAX_AHEAD_SECONDS)  # as after a clock that was set back
    assert one.reserve("c", 1.0) == 0.0
    assert (tmp_path / FILE).stat().st_blocks * 512 < 2**20  # of 16 MiB


def test_the_folder_is_found_or_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetch(site, ["http://a.test/1"], shared_rate_limit_dir=str(tmp_path / "a"), delay=50.0, obey_robots=False)
    shared = open_rate_limiter(str(tmp_path / "a"))
    assert shared is not None and shared.reserve("a.test", 0.0) == 0.0  # redirected hosts are counted apart
    assert shared.reserve(f"a.test at {site.address}", 0.0) > 1.0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert open_rate_limiter("auto") is open_rate_limiter(str(tmp_path / "own" / "gpt2train" / "rate-limit"))
    assert (tmp_path / "own" / "gpt2train" / "rate-limit" / FILE).exists()
    assert open_rate_limiter("off") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(UserError, match=r"set download\.shared_rate_limit_dir to another folder"):
        fetch(Site(), [], shared_rate_limit_dir=str(tmp_path / "cache" / "mine"))
    fetch(Site(), [], shared_rate_limit_dir="auto")  # continues without sharing
    assert "each download has its own rate limit" in caplog.text
