"""Manners towards hosts: how many requests at a time, how far apart, what robots.txt says, when to give up.

The slots and turns of a host are shared with other downloads on this machine (`tasks.download.manners`).
One `Hosts` serves a whole download, so that the pauses hold from one shard to the next, robots.txt is asked for once,
and a host that fails again and again is given up for all of its pages. The hosts unused for longest are forgotten.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from protego import Protego
from yarl import URL

from gpt2train.errors import UserError
from tasks.download.body import Refused
from tasks.download.manners import AUTO, Manners, manners_folder, manners_in
from tasks.download.settings import DownloadSettings

log = logging.getLogger("gpt2train")

ROBOTS_BYTES = 500 * 1024  # what RFC 9309 asks a crawler to read at least
KNOWN_HOSTS = 50_000  # some 10 KB each with an ordinary robots.txt
FIRST_LOOK, LAST_LOOK = 0.01, 0.2  # seconds between two looks at a host that another process is asking

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
        next_turn: time (monotonic seconds) before which it is not asked again, as far as this process knows.
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
    """Turns and rules of all hosts, within one event loop.

    Args:
        settings: the pace; with `manners`, other processes keep to it together with this one.
        fetch_robots: asks for a robots.txt.
        place_of: host -> what it is known as to other processes.

    """

    def __init__(
        self, settings: DownloadSettings, fetch_robots: FetchRobots, place_of: Callable[[str], str] = str
    ) -> None:
        self._settings, self._fetch_robots, self._place_of = settings, fetch_robots, place_of
        self._manners = _manners(settings.manners)
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
                async with self._common_slot(url):
                    wait = self._wait(host, url, max(delay, self._settings.delay))
                    if wait > 0:
                        await asyncio.sleep(wait)
                    async with self._total:
                        yield
        finally:
            host.users -= 1

    def _wait(self, host: Host, url: URL, delay: float) -> float:
        """Seconds until the next turn, which is taken by this."""
        now = time.monotonic()
        wait = max(0.0, host.next_turn - now)
        if self._manners is not None:
            wait = max(wait, self._manners.next_turn(self._place_of(url.raw_host or ""), delay))
        host.next_turn = now + wait + delay
        return wait

    @contextlib.asynccontextmanager
    async def _common_slot(self, url: URL) -> AsyncIterator[None]:
        """Hold one of the slots that all processes share for this host."""
        if self._manners is None:
            yield
            return
        place, pause = self._place_of(url.raw_host or ""), FIRST_LOOK
        while (slot := self._manners.take(place, self._settings.per_host)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)
        try:
            yield
        finally:
            self._manners.give_back(slot)

    def hold_off(self, url: URL, seconds: float) -> None:
        """Let no page of this host be asked for before so many seconds have passed: it said so."""
        host = self._host(url)
        host.next_turn = max(host.next_turn, time.monotonic() + seconds)
        if self._manners is not None:
            self._manners.hold_off(self._place_of(url.raw_host or ""), seconds)

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


def _manners(setting: str) -> Manners | None:
    """What is kept together with other processes; without a place for it each process keeps its own count.

    Raises:
        UserError: the folder that was named cannot be used.
    """
    try:
        folder = manners_folder(setting)
        return None if folder is None else manners_in(folder)
    except (UserError, RuntimeError) as error:  # no home folder
        if setting != AUTO:
            raise
        log.warning("%s; until then each download keeps its own count", error)
        return None
