"""Manners towards hosts: how many requests at a time, how far apart, what robots.txt says, when to give up.

One `Hosts` serves a whole download, so that the pauses hold from one shard to the next, robots.txt is asked for once,
and a host that fails again and again is given up for all of its pages. The hosts unused for longest are forgotten.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from protego import Protego
from yarl import URL

from tasks.download.body import Refused
from tasks.download.settings import DownloadSettings

ROBOTS_BYTES = 500 * 1024  # what RFC 9309 asks a crawler to read at least
KNOWN_HOSTS = 50_000  # some 10 KB each with an ordinary robots.txt

# Fetches a robots.txt: its status and text. Raises Refused when there is no answer.
FetchRobots = Callable[[URL], Awaitable[tuple[int, str]]]


@dataclass
class Rules:
    """What one robots.txt says.

    Attributes:
        parsed: the file; None where there is none, so that all is allowed.
        refusal: why nothing may be fetched at all: the host errs or cannot be reached.
    """

    parsed: Protego | None = None
    refusal: Refused | None = None


@dataclass
class Host:
    """What is known about one host.

    Attributes:
        slots: one for each request that may be in flight.
        users: requests that hold a slot or wait for one; a host in use is not forgotten.
        next_turn: time (monotonic seconds) before which it is not asked again.
        failures: pages in a row that failed for a reason that may pass.
        last: the last such reason.
        rules: origin (scheme, host, port) -> what its robots.txt says.
    """

    slots: asyncio.Semaphore
    users: int = 0
    next_turn: float = 0.0
    failures: int = 0
    last: str = ""
    rules: "dict[str, asyncio.Task[Rules]]" = field(default_factory=dict)


class Hosts:
    """Turns and rules of all hosts, within one event loop."""

    def __init__(self, settings: DownloadSettings, fetch_robots: FetchRobots) -> None:
        self._settings, self._fetch_robots = settings, fetch_robots
        self._known: OrderedDict[str, Host] = OrderedDict()
        self._total = asyncio.Semaphore(settings.concurrency)
        self._agent = settings.user_agent.partition("/")[0].strip()

    def _host(self, url: URL) -> Host:
        name = url.raw_host or ""
        host = self._known.get(name)
        if host is None:
            host = self._known[name] = Host(asyncio.Semaphore(self._settings.per_host))
            if len(self._known) > KNOWN_HOSTS:
                self._forget()
        self._known.move_to_end(name)
        return host

    def _forget(self) -> None:
        """Drop a tenth of the hosts: those unused for longest, and neither in use nor to be waited for."""
        now, wanted = time.monotonic(), len(self._known) // 10
        idle = (name for name, host in self._known.items() if not host.users and host.next_turn <= now)
        for name in [name for name, _ in zip(idle, range(wanted), strict=False)]:
            del self._known[name]

    @contextlib.asynccontextmanager
    async def turn(self, url: URL, delay: float = 0.0) -> AsyncIterator[None]:
        """Wait until the host may be asked, and hold one of its slots for the length of one request.

        The host's slot comes first: whoever waits for a busy host keeps none of the slots that all hosts share.

        Raises:
            Refused: `host_given_up`.
        """
        host = self._host(url)
        host.users += 1
        try:
            async with host.slots:
                self._refuse_dead(host)  # whoever waited may have waited for pages that failed
                now = time.monotonic()
                at = max(now, host.next_turn)
                host.next_turn = at + max(delay, self._settings.delay)
                if at > now:
                    await asyncio.sleep(at - now)
                async with self._total:
                    yield
        finally:
            host.users -= 1

    def hold_off(self, url: URL, seconds: float) -> None:
        """Let no page of this host be asked for before so many seconds have passed: it said so."""
        host = self._host(url)
        host.next_turn = max(host.next_turn, time.monotonic() + seconds)

    def note(self, url: URL, refused: Refused | None) -> None:
        """Take notice of how a page ended."""
        host = self._host(url)
        if refused is None or not refused.retryable:
            host.failures = 0
        elif refused.reason != "host_given_up":
            host.failures += 1
            host.last = refused.reason

    async def check(self, url: URL) -> float:
        """Ask whether a page may be fetched: by what its host did so far, and by its robots.txt.

        Returns:
            The Crawl-delay, in seconds.

        Raises:
            Refused: `host_given_up`; `robots_forbidden`; or, where robots.txt cannot be read, why.
        """
        host = self._host(url)
        self._refuse_dead(host)
        if not self._settings.obey_robots:
            return 0.0
        rules = await self._rules(host, url)
        if rules.refusal is not None:
            raise Refused(rules.refusal.reason, rules.refusal.detail, rules.refusal.retryable)
        if rules.parsed is None:
            return 0.0
        if not rules.parsed.can_fetch(str(url), self._agent):
            raise Refused("robots_forbidden", f"by {url.origin()}/robots.txt")
        return min(float(rules.parsed.crawl_delay(self._agent) or 0.0), self._settings.max_crawl_delay)

    def _refuse_dead(self, host: Host) -> None:
        if host.failures >= self._settings.give_up:
            detail = f"after {host.failures} pages in a row that failed, the last by {host.last}"
            raise Refused("host_given_up", detail, retryable=True)

    async def _rules(self, host: Host, url: URL) -> Rules:
        """The host's rules, asked for once however many pages wait for them."""
        origin = str(url.origin())
        if origin not in host.rules:
            host.rules[origin] = asyncio.ensure_future(self._ask(url.origin() / "robots.txt"))
        host.users += 1
        try:
            return await asyncio.shield(host.rules[origin])
        finally:
            host.users -= 1

    async def _ask(self, url: URL) -> Rules:
        """RFC 9309: no such file allows all; a server that errs, or cannot be reached, forbids all."""
        try:
            status, text = await self._fetch_robots(url)
        except Refused as refusal:
            return Rules(refusal=refusal)
        if 200 <= status < 300:
            return Rules(parsed=Protego.parse(text))
        if 400 <= status < 500 and status != 429:
            return Rules()
        return Rules(refusal=Refused("robots_unavailable", f"robots.txt answered {status}", retryable=True))
