"""Rules of robots.txt with bounded time and memory; expensive comparisons run outside the event loop.

Protego parses the file and matches URLs. Its cost grows with agents x rules of a group, and with rules x length of the
URL. A file of 500 kB can cause 10^8 of the former, or 0.4 s of CPU time per page by the latter.
"""

import asyncio
import re

from protego import Protego

from tasks.download.consent.robots_groups import RobotsGroups
from tasks.download.response_body import FetchRejectedError

MAX_APPLIED = 500_000  # agents x rules, summed over groups: about a second of CPU time and 150 MB
MAX_AGENTS = 5_000  # of one group: each agent is searched for among the others
MAX_COMPARED = 20_000_000  # rules x characters of a URL: 40 ms
MAX_INLINE = 500_000  # the same within the event loop: 1 ms
_AGENT = re.compile(r"[ \t]*user[ -]?agent\b", re.IGNORECASE)
_RULE = re.compile(r"[ \t]*(?:allow|d)", re.IGNORECASE)  # Protego knows six spellings of "disallow"


class RobotsRules:
    """The rules of one robots.txt, given as text.

    Raises:
        FetchRejectedError: `robots_unavailable`, the file has too many rules for too many agents or cannot be parsed.
    """

    def __init__(self, text: str) -> None:
        self._rules = count_rules(text)
        try:
            self._parsed = Protego.parse(text)
        except Exception as error:
            raise FetchRejectedError(
                "robots_unavailable", f"robots.txt cannot be parsed ({type(error).__name__})"
            ) from error
        self.groups = RobotsGroups(text)  # what the file says beside its rules

    @property
    def sitemaps(self) -> list[str]:
        """Sitemaps that the file names, in order."""
        return list(self._parsed.sitemaps)

    async def allows(self, url: str, agent: str, rules: int | None = None) -> bool:
        """Return True if a URL may be fetched. Rules that would take too long to match forbid it.

        `rules` bounds the number of rules for this agent; None: that of the whole file.
        """
        cost = (self._rules if rules is None else rules) * len(url)
        if cost > MAX_COMPARED:
            return False
        if cost > MAX_INLINE:
            return await asyncio.to_thread(self._parsed.can_fetch, url, agent)
        return self._parsed.can_fetch(url, agent)

    async def allows_crawler(self, url: str, agent: str) -> bool:
        """Return True if a URL may be fetched by this crawler, under every name that the file has for it."""
        for name in self._names(agent):
            if not await self.allows(url, name):
                return False
        return True

    def delay(self, agent: str) -> float:
        """Return the Crawl-delay in seconds; 0 if there is none."""
        return max(float(self._parsed.crawl_delay(name) or 0.0) for name in self._names(agent))

    def _names(self, agent: str) -> list[str]:
        """Return the names of a crawler as the file spells them, which Protego would not match with a version."""
        return [name for name, _ in self.groups.spellings([agent])] or [agent]


def count_rules(text: str) -> int:
    """Count the rules of a robots.txt.

    Raises:
        FetchRejectedError: `robots_unavailable`, the file has too many rules for too many agents.
    """
    rules = agents = applied = in_group = 0
    for line in text.splitlines():
        if _AGENT.match(line):
            agents, in_group = (1, 0) if in_group else (agents + 1, 0)
        elif _RULE.match(line):
            rules, in_group = rules + 1, in_group + 1
            applied += agents
        else:
            continue
        if agents > MAX_AGENTS or applied > MAX_APPLIED:
            raise FetchRejectedError("robots_unavailable", "robots.txt has too many rules for too many agents")
    return rules
