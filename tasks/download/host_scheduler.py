"""Politeness per host: concurrency, delay between requests, robots.txt, and a limit on consecutive failures.

The rate limit of a host is shared with other downloads on this machine (`tasks.download.shared_rate_limit`). One
`HostScheduler` serves a whole download, so that delays apply across shards, robots.txt is fetched once per host, and a
host that fails repeatedly is given up for all of its pages. The least recently used hosts are evicted.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from yarl import URL

from tasks.download.consent.signals import SiteSignals, robots_signals
from tasks.download.consent.tdm_file import PATH, TdmRules
from tasks.download.response_body import FetchRejectedError
from tasks.download.robots import RobotsRules
from tasks.download.settings import DownloadSettings
from tasks.download.shared_rate_limit import open_rate_limiter

T = TypeVar("T")

ROBOTS_BYTES = 500 * 1024  # minimum that RFC 9309 requires a crawler to read
MAX_ROBOTS_INLINE = 16 * 1024  # characters, parsed in the event loop in up to 10 ms; longer files in a thread
MAX_HOSTS = 50_000  # some 10 KB each with an ordinary robots.txt
FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.01, 0.2  # between two attempts to get a slot that another process holds

# Fetches a robots.txt or tdmrep.json, after a delay, and returns its status and text. Raises FetchRejectedError without
# an answer.
FetchFile = Callable[[URL, float], Awaitable[tuple[int, str]]]

# Rules of an origin: its robots.txt; None if it has none, so that every URL is allowed; the reason for which every URL
# is forbidden if the server failed or cannot be reached.
Rules = RobotsRules | FetchRejectedError | None


@dataclass
class Host:
    """State of one host."""

    shared_name: str  # name in the rate limit that processes share
    slots: asyncio.Semaphore  # concurrent requests
    users: int = 0  # requests that hold a slot or wait for one; a host in use is not evicted
    next_request: float = 0.0  # earliest time of the next request (monotonic seconds), as far as this process knows
    failures: int = 0  # consecutive pages that failed for a temporary reason
    last_reason: str = ""  # reason of the last such failure
    rules: "dict[str, asyncio.Task[Rules]]" = field(default_factory=dict)  # by origin (scheme, host, port)
    tdm: "dict[str, asyncio.Task[TdmRules | FetchRejectedError]]" = field(default_factory=dict)  # the same


class HostScheduler:
    """Rate limits and robots rules of all hosts, within one event loop.

    `shared_name` maps a host to its name in the rate limit that processes share.
    """

    def __init__(self, settings: DownloadSettings, fetch_file: FetchFile, shared_name: Callable[[str], str]) -> None:
        self._settings, self._fetch_file, self._shared_name = settings, fetch_file, shared_name
        self._shared = open_rate_limiter(settings.shared_rate_limit_dir)
        self._hosts: OrderedDict[str, Host] = OrderedDict()
        self._total = asyncio.Semaphore(settings.concurrency)
        self._agent = settings.agent

    def _host(self, url: URL) -> Host:
        name = url.raw_host or ""
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(self._shared_name(name), asyncio.Semaphore(self._settings.per_host))
            if len(self._hosts) > MAX_HOSTS:
                self._evict()
        self._hosts.move_to_end(name)
        return host

    def _evict(self) -> None:
        """Drop the least recently used tenth of the hosts that are idle and have no pending delay."""
        now, count = time.monotonic(), len(self._hosts) // 10
        idle = (name for name, host in self._hosts.items() if not host.users and host.next_request <= now)
        for name in [name for name, _ in zip(idle, range(count), strict=False)]:
            del self._hosts[name]

    @contextlib.asynccontextmanager
    async def slot(self, url: URL, delay: float = 0.0) -> AsyncIterator[None]:
        """Wait for the host's rate limit and hold one of its slots during one request.

        `delay` is the host's Crawl-delay in seconds, and counts if it is longer than the setting. The host's slot
        is taken first, so that requests that wait for a busy host hold none of the global slots.

        Raises:
            FetchRejectedError: `host_given_up`.
        """
        host = self._host(url)
        host.users += 1
        try:
            async with host.slots:
                self._check_alive(host)  # pages of this host may have failed during the wait
                async with self._shared_slot(host):
                    if (wait := self._reserve(host, max(delay, self._settings.delay))) > 0:
                        await asyncio.sleep(wait)
                    async with self._total:
                        yield
        finally:
            host.users -= 1

    def _reserve(self, host: Host, delay: float) -> float:
        """Reserve the next request time of a host and return the seconds until then."""
        now = time.monotonic()
        wait = max(0.0, host.next_request - now)
        if self._shared is not None:
            wait = max(wait, self._shared.reserve(host.shared_name, delay))
        host.next_request = now + wait + delay
        return wait

    @contextlib.asynccontextmanager
    async def _shared_slot(self, host: Host) -> AsyncIterator[None]:
        """Hold one of the host's slots that all processes share."""
        if self._shared is None:
            yield
            return
        pause = FIRST_POLL_SECONDS
        while (slot := self._shared.acquire(host.shared_name, self._settings.per_host)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
        try:
            yield
        finally:
            self._shared.release(slot)

    def delay_host(self, url: URL, seconds: float) -> None:
        """Send no request to this host for some seconds, as it asked for by Retry-After."""
        host = self._host(url)
        host.next_request = max(host.next_request, time.monotonic() + seconds)
        if self._shared is not None:
            self._shared.delay_host(host.shared_name, seconds)

    def record_result(self, url: URL, rejection: FetchRejectedError | None) -> None:
        """Count a page's failure or success for its host."""
        host = self._host(url)
        if rejection is None or not rejection.retryable:
            host.failures = 0
        elif rejection.reason != "host_given_up":
            host.failures += 1
            host.last_reason = rejection.reason

    async def check(self, url: URL) -> float:
        """Check that a page may be fetched, by its host's failures so far and its robots.txt; return the Crawl-delay.

        Raises:
            FetchRejectedError: `host_given_up`, `robots_forbidden`, or the reason for which robots.txt cannot be read.
        """
        host = self._host(url)
        self._check_alive(host)
        if not self._settings.obey_robots:
            return 0.0
        rules = await self._rules(host, url)
        if rules is None:
            return 0.0
        if isinstance(rules, FetchRejectedError):  # one error object for each page, which gets a traceback
            raise FetchRejectedError(rules.reason, rules.detail, rules.retryable)
        if not await rules.allows_crawler(str(url), self._agent):
            raise FetchRejectedError("robots_forbidden", f"by {url.origin()}/robots.txt")
        return min(rules.delay(self._agent), self._settings.max_crawl_delay)

    async def sitemaps(self, url: URL) -> list[str]:
        """Return the sitemaps that robots.txt of an origin names; none if it cannot be read."""
        rules = await self._rules(self._host(url), url)
        return rules.sitemaps if isinstance(rules, RobotsRules) else []

    async def site_signals(self, url: URL, delay: float) -> SiteSignals:
        """Return what the site's files say about the use of a page; tdmrep.json is read once per origin.

        Raises:
            FetchRejectedError: tdmrep.json cannot be fetched.
        """
        host, settings = self._host(url), self._settings.consent
        rules = await self._rules(host, url)
        found = SiteSignals()
        if isinstance(rules, RobotsRules):
            found = await robots_signals(rules, url, self._agent, settings)
        refused = any(signal.name in settings.honour for signal in found.signals)
        if refused or "tdm_reservation" not in settings.honour:
            return found
        file = url.origin().join(URL(PATH))
        reservations = await self._once(host, host.tdm, url, lambda: self._fetch_tdm_rules(file, delay))
        if isinstance(reservations, FetchRejectedError):
            raise FetchRejectedError(reservations.reason, f"tdmrep.json: {reservations.detail}", reservations.retryable)
        return dataclasses.replace(found, reserved=reservations.reserves(url.raw_path_qs))

    async def _fetch_tdm_rules(self, url: URL, delay: float) -> TdmRules | FetchRejectedError:
        try:
            status, text = await self._fetch_file(url, delay)
            return await _parsed(TdmRules, text if status == 200 else "")
        except FetchRejectedError as rejection:
            return rejection if rejection.retryable else TdmRules("")

    async def _once(
        self, host: Host, files: "dict[str, asyncio.Task[T]]", url: URL, fetch: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Return a file of the URL's origin, fetched once for all pages that wait for it."""
        origin = str(url.origin())
        if origin not in files:
            files[origin] = asyncio.ensure_future(fetch())
        host.users += 1
        try:
            return await asyncio.shield(files[origin])
        finally:
            host.users -= 1

    def _check_alive(self, host: Host) -> None:
        if host.failures >= self._settings.max_host_failures:
            detail = f"after {host.failures} pages in a row that failed, the last by {host.last_reason}"
            raise FetchRejectedError("host_given_up", detail, retryable=True)

    async def _rules(self, host: Host, url: URL) -> Rules:
        return await self._once(host, host.rules, url, lambda: self._fetch_rules(url.origin() / "robots.txt"))

    async def _fetch_rules(self, url: URL) -> Rules:
        """Fetch rules by RFC 9309: a missing file allows all; a server error or an unreachable host forbids all."""
        try:
            status, text = await self._fetch_file(url, 0.0)
            if 200 <= status < 300:
                return await _parsed(RobotsRules, text)
        except FetchRejectedError as rejection:
            return rejection
        if 400 <= status < 500 and status != 429:
            return None
        return FetchRejectedError("robots_unavailable", f"robots.txt answered {status}", retryable=True)


async def _parsed(rules: Callable[[str], T], text: str) -> T:
    return rules(text) if len(text) < MAX_ROBOTS_INLINE else await asyncio.to_thread(rules, text)
