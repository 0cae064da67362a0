"""What robots.txt says beside its rules: the groups' agents, Content-Signal lines and License lines (RSL).

Protego reads the rules and knows none of the others.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tasks.download.consent.headers import no_training
from tasks.download.consent.path_pattern import encoded, matches

MAX_LINES = 200  # Content-Signal lines, and License lines, of one file
MAX_CONTENT = 1000  # characters of such a line
MAX_SPELLINGS = 8  # of one agent's name that are compared
_FIELD = re.compile(r"[ \t]*([a-z][a-z -]{0,30}?)[ \t]*:[ \t]*(.*)", re.IGNORECASE)
_AGENT = ("user-agent", "useragent", "user agent")
_OF_SITE = ("sitemap", "sitemaps", "site-map", "host")  # belong to no group


@dataclass
class Group:
    """A group of robots.txt."""

    agents: list[str] = field(default_factory=list)  # names in lower case, as the file spells them
    rules: int = 0  # number of its lines below the agents
    # Path patterns under which Content-Signal reserves training; empty for the whole site.
    reserved: list[str] = field(default_factory=list)


class RobotsGroups:
    """Groups and licenses of one robots.txt."""

    def __init__(self, text: str) -> None:
        self.licenses: list[str] = []
        self._spellings: dict[str, list[str]] = {}  # product token -> names as in the file
        self._rules: Counter[str] = Counter()  # by name as in the file
        self._reserved: dict[str, list[str]] = {}  # product token -> path patterns
        for group in self._groups(text):
            # A signal above all groups, which belongs to none by the grammar, is meant for all crawlers.
            for name in group.agents or (["*"] if group.reserved else []):
                self._rules[name] += group.rules
                for token in _tokens(name):
                    spellings = self._spellings.setdefault(token, [])
                    if name not in spellings and len(spellings) < MAX_SPELLINGS:
                        spellings.append(name)
                    if group.reserved:
                        self._reserved.setdefault(token, []).extend(group.reserved)

    def spellings(self, agents: Iterable[str]) -> list[tuple[str, int]]:
        """Return (name, rules) of those agents that the file names, each name as the file spells it."""
        names = (name for agent in agents for name in self._spellings.get(agent.lower(), []))
        return [(name, self._rules[name]) for name in names]

    def names(self, agent: str) -> bool:
        """Return True if the file has a group for this agent."""
        return agent.lower() in self._spellings

    def reserves_training(self, path: str, agents: Collection[str]) -> bool:
        """Return True if a Content-Signal for one of the agents (`*`: all) covers a path and query."""
        patterns = (pattern for agent in agents for pattern in self._reserved.get(agent.lower(), []))
        return any(not pattern or matches(pattern, path) for pattern in patterns)

    def _groups(self, text: str) -> list[Group]:
        group = Group()
        groups, signals = [group], 0
        for line in text.splitlines():
            found = _FIELD.match(line)
            if not found:
                continue
            name, value = found[1].lower(), found[2].partition("#")[0].strip()
            if name in _AGENT:
                if group.rules:
                    group = Group()
                    groups.append(group)
                group.agents.append(value.lower())
            elif name == "license":
                if len(self.licenses) < MAX_LINES:
                    self.licenses.append(value[:MAX_CONTENT])
            elif name not in _OF_SITE:
                group.rules += 1
                if name == "content-signal" and signals < MAX_LINES:
                    signals += 1
                    group.reserved += _reserved(value)
        return groups


def _tokens(name: str) -> Iterable[str]:
    """Return the product tokens of a name in lower case: what follows one, as a version, is none of it.

    A name may have a space (`Kangaroo Bot`), and some files have several names in one line.
    """
    parts = [part.partition("/")[0].replace("*", "").strip() for part in name[:MAX_CONTENT].split(",")]
    return dict.fromkeys([*parts, *(part.split()[0] for part in parts if part)]) if any(parts) else ["*"]


def _reserved(value: str) -> list[str]:
    """Return the path pattern that a Content-Signal reserves (empty: all paths); none if it reserves nothing."""
    value = value[:MAX_CONTENT]
    path, _, rest = value.replace("\t", " ").partition(" ")
    if not path.startswith("/"):
        path, rest = "", value
    return [encoded(path)] if no_training(rest) else []
