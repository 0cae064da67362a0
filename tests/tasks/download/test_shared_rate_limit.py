"""The rate limit that concurrent downloads of one machine share."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt2train.errors import UserError
from tasks.download import shared_rate_limit
from tasks.download.shared_rate_limit import FILE, SharedRateLimiter, open_rate_limiter, record_index
from tests.processes import wait_for
from tests.tasks.download.fetch_helpers import fetch, make_settings
from tests.tasks.web_server import Site, ok

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


def crawl(site: Site, urls: list[str], **changes: Any) -> "subprocess.Popen[str]":
    """A process that fetches as soon as it reads a line of input."""
    settings = make_settings(per_host=1, obey_robots=False, **changes).model_dump_json()
    arguments = [settings, f'"{site.address}"', str(urls).replace("'", '"')]
    command = [sys.executable, "-c", CRAWLS, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(*processes: "subprocess.Popen[str]") -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def test_two_processes_share_the_delay_of_a_host(site: Site, tmp_path: Path) -> None:
    site.handlers["/busy"] = lambda h: (time.sleep(0.1), ok(h))[1]
    lists = [[f"http://a.test/{name}{n}" for n in range(5)] for name in "xy"]
    together = [crawl(site, urls, shared_rate_limit_dir=str(tmp_path), delay=0.3) for urls in lists]
    go(*together)
    assert [process.communicate()[0] for process in together] == [f"{[''] * 5}\n"] * 2
    times = sorted(at for _, at in site.starts)
    assert len(times) == 10
    assert times[-1] - times[0] > 2.4  # nine pauses; each by itself would take four of them, 1.2


def test_the_slot_of_a_killed_process_is_freed(site: Site, tmp_path: Path) -> None:
    site.handlers["/hangs"] = lambda h: time.sleep(60)
    killed = crawl(site, ["http://a.test/hangs"], shared_rate_limit_dir=str(tmp_path), deadline=50)
    go(killed)
    wait_for(lambda: site.hits["a.test", "/hangs"] == 1, 30, "the first request")
    waits = crawl(site, ["http://a.test/1", "http://c.test/1"], shared_rate_limit_dir=str(tmp_path))
    go(waits)
    wait_for(lambda: site.hits["c.test", "/1"] == 1, 30, "a page of another host")
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


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SharedRateLimiter, SharedRateLimiter]:
    """Two objects that simulate two processes: POSIX locks belong to a process, so theirs checks ours."""
    ours, theirs = SharedRateLimiter(tmp_path), SharedRateLimiter(tmp_path)
    theirs._pid = ours._pid + 1
    monkeypatch.setattr(theirs, "_lock", lambda at: at not in ours._held)
    return ours, theirs


def take(limiter: SharedRateLimiter, host: str = "a") -> Any:
    slot = limiter.acquire(host, 1)
    assert slot is not None
    return slot


def test_a_waiting_process_goes_first(two: tuple[SharedRateLimiter, SharedRateLimiter], clock: SimpleNamespace) -> None:
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


def test_a_waiting_process_goes_first_at_any_clock_value(
    two: tuple[SharedRateLimiter, SharedRateLimiter], clock: SimpleNamespace
) -> None:
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


def test_redirected_hosts_are_counted_apart(site: Site, tmp_path: Path) -> None:
    fetch(site, ["http://a.test/1"], shared_rate_limit_dir=str(tmp_path), delay=50.0, obey_robots=False)
    shared = shared_rate_limit.open_rate_limiter(str(tmp_path))
    assert shared is not None
    assert shared.reserve("a.test", 0.0) == 0.0
    assert shared.reserve(f"a.test at {site.address}", 0.0) > 1.0


def test_the_folder_is_found_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
