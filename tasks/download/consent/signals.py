"""Decision about one page from all signals, the same at the first fetch and at every later one.

| signal | where | value |
| --- | --- | --- |
| `robots_ai_agent` | robots.txt, group of an AI crawler | `Disallow` for the URL, by RFC 9309 |
| `noai`, `noimageai` | header X-Robots-Tag; meta tag `robots` or of an AI crawler | directive |
| `tdm_reservation` | meta tag, else header, else /.well-known/tdmrep.json | `1` (https://www.w3.org/2022/tdmrep/) |
| `content_signal` | robots.txt, group of this crawler or of `*`; header Content-Signal | `ai-train=no` |

Licenses are recorded, and drop nothing: `rel=license` of the page and its Link header, `License:` in robots.txt (RSL).
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urljoin

from yarl import URL

from tasks.download.consent.headers import link_licenses, no_training, robots_directives
from tasks.download.consent.page_tags import PageTags
from tasks.download.consent.settings import ConsentSettings

if TYPE_CHECKING:
    from tasks.download.robots import RobotsRules  # knows the groups, which are of this package

MAX_LICENSES, MAX_LICENSE = 8, 300  # licenses of one page, and characters of one
MAX_VALUES, MAX_VALUE = 64, 8192  # values of one header, and characters of one
NO_AI = ("noai", "noimageai")
NO_TAGS = PageTags()


class Headers(Protocol):
    """Header fields of a response; several may have one name."""

    def getall(self, key: str, default: list[str], /) -> list[str]:
        """Return all values of a field, by its name in any case."""


@dataclass(frozen=True)
class Signal:
    """A signal against the use of a page."""

    name: str  # reason code
    detail: str  # where it was found


@dataclass(frozen=True)
class SiteSignals:
    """What the files of a site say about one of its URLs."""

    signals: tuple[Signal, ...] = ()  # those of robots.txt
    licenses: tuple[str, ...] = ()  # the same
    reserved: bool | None = None  # reservation by tdmrep.json; None if the file says nothing about the URL


@dataclass(frozen=True)
class Consent:
    """All signals and licenses of a page, and the signal that drops it, if any."""

    signals: tuple[Signal, ...]
    licenses: tuple[str, ...]
    refusal: Signal | None


async def robots_signals(rules: "RobotsRules", url: URL, agent: str, settings: ConsentSettings) -> SiteSignals:
    """Return the signals of a robots.txt for a URL.

    A group for this crawler says all; without one, those for AI crawlers and for all crawlers do.
    """
    found: list[Signal] = []
    groups, file = rules.groups, f"{url.origin()}/robots.txt"
    is_named = groups.names(agent)
    named = [] if is_named else groups.spellings(settings.agents)
    total = sum(count for _, count in named)
    for name, _ in named:
        if not await rules.allows(str(url), name, total):
            found.append(Signal("robots_ai_agent", f"{name}, by {file}"))
            break
    if groups.reserves_training(url.raw_path_qs, (agent,) if is_named else ("*", *settings.agents)):
        found.append(Signal("content_signal", file))
    return SiteSignals(tuple(found), bounded(groups.licenses))


def consent(
    settings: ConsentSettings,
    agent: str,
    url: str,
    site: SiteSignals,
    headers: Headers | None = None,
    tags: PageTags | None = None,
) -> Consent:
    """Decide whether a page may be used by the crawler `agent`.

    The URL resolves relative links. Header and tags are None before the request, the tags also if the page is not HTML.
    """
    if headers is None and tags is None:  # before the request: the files alone, whose reservation the answer may lift
        refusal = next((signal for signal in site.signals if signal.name in settings.honour), None)
        return Consent(site.signals, bounded(site.licenses), refusal)
    tags = tags or NO_TAGS
    names = _lower_names(agent, *settings.agents)

    def values(name: str) -> list[str]:
        found = headers.getall(name, []) if headers is not None else []
        return [value[:MAX_VALUE] for value in found[:MAX_VALUES]]

    found = list(site.signals)
    header = robots_directives(values("X-Robots-Tag"), names)
    meta = tags.directives(names)
    for name in NO_AI:
        if name in meta or name in header:
            found.append(Signal(name, "meta tag" if name in meta else "X-Robots-Tag"))
    by_header = _reservation(values("tdm-reservation"))
    places = (("meta tag", tags.reservation), ("header", by_header), ("tdmrep.json", site.reserved))
    place, reserved = next(((place, value) for place, value in places if value is not None), ("", False))
    if reserved and headers is not None:  # the answer to the request may lift the reservation of the file
        found.append(Signal("tdm_reservation", place))
    if any(map(no_training, values("Content-Signal"))):
        found.append(Signal("content_signal", "header"))
    licenses = [urljoin_or_none(url, link) for link in (*tags.licenses, *link_licenses(values("Link")))]
    refusal = next((signal for signal in found if signal.name in settings.honour), None)
    return Consent(tuple(found), bounded([*licenses, *site.licenses]), refusal)


@functools.lru_cache(maxsize=16)
def _lower_names(*names: str) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def bounded(licenses: Iterable[str | None]) -> tuple[str, ...]:
    """Return the distinct licenses in order, with bounds on their number and length."""
    plain = (text for text in licenses if text and len(text) <= MAX_LICENSE and text.isprintable())
    return tuple(dict.fromkeys(plain))[:MAX_LICENSES]


def urljoin_or_none(base: str, link: str) -> str | None:
    """Resolve a link; None if it is malformed."""
    try:
        return urljoin(base, link)
    except ValueError:
        return None


def _reservation(values: Iterable[str]) -> bool | None:
    """Return the reservation that header fields state; one `1` suffices. Any other value but `0` states nothing."""
    stated = {part.strip() for value in values for part in value.split(",")} & {"0", "1"}
    return "1" in stated if stated else None
