"""Manners towards one host: how many requests at a time, how far apart, and what its robots.txt says.

`HostMemory` outlives the batches of a step, so that the pauses hold from one to the next and robots.txt is asked for
once; the locks belong to one event loop and are made anew.
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
KNOWN_HOSTS = 100_000  # rules kept in memory; the host unused for longest goes first

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
class HostMemory:
    """What is known about hosts, across batches.

    Attributes:
        next_turn: host -> time (monotonic seconds) before which it is not asked again.
        rules: scheme, host and port -> what its robots.txt says.
    """

    next_turn: dict[str, float] = field(default_factory=dict)
    rules: "OrderedDict[str, Rules]" = field(default_factory=OrderedDict)

    def prune(self) -> None:
        """Forget pauses that are over, hosts that could not be asked, and the rules beyond the limit."""
        now = time.monotonic()
        self.next_turn = {host: at for host, at in self.next_turn.items() if at > now}
        for origin in [origin for origin, rules in self.rules.items() if rules.refusal is not None]:
            del self.rules[origin]
        while len(self.rules) > KNOWN_HOSTS:
            self.rules.popitem(last=False)


class Hosts:
    """Turns and rules of all hosts, within one event loop."""

    def __init__(self, settings: DownloadSettings, memory: HostMemory, fetch_robots: FetchRobots) -> None:
        self._settings, self._memory, self._fetch_robots = settings, memory, fetch_robots
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._asking: dict[str, asyncio.Task[Rules]] = {}
        self._total = asyncio.Semaphore(settings.concurrency)
        self._agent = settings.user_agent.partition("/")[0].strip()

    @contextlib.asynccontextmanager
    async def turn(self, url: URL, delay: float = 0.0) -> AsyncIterator[None]:
        """Wait until the host may be asked, and hold one of its slots for the length of one request.

        The host's slot comes first: whoever waits for a busy host keeps none of the slots that all hosts share.
        """
        host = url.raw_host or ""
        async with self._slots.setdefault(host, asyncio.Semaphore(self._settings.per_host)):
            now = time.monotonic()
            at = max(now, self._memory.next_turn.get(host, 0.0))
            pause = max(delay, self._settings.delay)
            if pause:
                self._memory.next_turn[host] = at + pause
            if at > now:
                await asyncio.sleep(at - now)
            async with self._total:
                yield

    async def rules(self, url: URL) -> Rules:
        """The host's rules, asked for once however many pages wait for them."""
        origin = str(url.origin())
        known = self._memory.rules.get(origin)
        if known is not None:
            self._memory.rules.move_to_end(origin)
            return known
        if origin not in self._asking:
            self._asking[origin] = asyncio.ensure_future(self._ask(url.origin() / "robots.txt"))
        rules = await asyncio.shield(self._asking[origin])
        self._memory.rules[origin] = rules
        return rules

    async def check(self, url: URL) -> float:
        """Ask robots.txt whether a page may be fetched; returns the Crawl-delay, in seconds.

        Raises:
            Refused: `robots_forbidden`; or, where robots.txt cannot be read, why.
        """
        if not self._settings.obey_robots:
            return 0.0
        rules = await self.rules(url)
        if rules.refusal is not None:
            raise Refused(rules.refusal.reason, rules.refusal.detail, rules.refusal.retryable)
        if rules.parsed is None:
            return 0.0
        if not rules.parsed.can_fetch(str(url), self._agent):
            raise Refused("robots_forbidden", f"by {url.origin()}/robots.txt")
        return min(float(rules.parsed.crawl_delay(self._agent) or 0.0), self._settings.max_crawl_delay)

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
