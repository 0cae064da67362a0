"""Parsers of the header fields X-Robots-Tag, Content-Signal and Link, which may be malformed."""

import re
from collections.abc import Collection, Iterable, Iterator

# Directives whose value follows a colon: their name is not that of an agent.
VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
# What precedes the first colon of the time in the rest of a date that begins with `Friday,`.
_DATE_REST = re.compile(r"\d{1,2}[ -][a-z]{3,9}[ -]\d{2,4} +\d{1,2}", re.ASCII)
EVERYONE = "*"
_PARTS = re.compile("[,;]")
_SPLIT = re.compile(r"[\s,;]+")
_LINK = re.compile(r"<([^<>]{0,2048})>([^<]{0,2048})")
_REL = re.compile(r""";\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))""", re.IGNORECASE)
_STATED = re.compile(r"(?:^|[\s,;])ai-train\s*=\s*([a-z]+)", re.IGNORECASE)


def robots_directives(values: Iterable[str], agents: Collection[str]) -> set[str]:
    """Return the directives of X-Robots-Tag fields, in lower case, that apply to all or to one of the agents.

    `agents` are names in lower case. A name before a colon limits the directives after it, to the end of the field or
    to the next name.
    """
    return {directive for value in values for agent, directive in _directives(value) if agent in (EVERYONE, *agents)}


def _directives(value: str) -> Iterator[tuple[str, str]]:
    """Yield (agent, directive) pairs of one field, in lower case."""
    agent = EVERYONE
    for part in _PARTS.split(value.lower()):
        name, colon, rest = part.partition(":")
        name = name.strip()
        if colon and _DATE_REST.fullmatch(name):
            continue
        if colon and name not in VALUED:
            agent, part = name.partition("/")[0].strip(), rest
            name, colon, rest = (half.strip() for half in part.partition(":"))
        words = rest.split()[1:] if colon and name in VALUED else part.split()
        for word in () if name == "unavailable_after" else words:
            yield agent, word


def words_of(content: str) -> set[str]:
    """Return the directives of a meta tag's content, in lower case."""
    return set(_SPLIT.split(content.lower())) - {""}


def no_training(value: str) -> bool:
    """Return True if a Content-Signal reserves the use for training: `ai-train=no`."""
    return "no" in (found.lower() for found in _STATED.findall(value))


def link_licenses(values: Iterable[str]) -> list[str]:
    """Return the targets of Link fields with the relation `license`."""
    return [
        target.strip()
        for value in values
        for target, parameters in _LINK.findall(value)
        if any("license" in (quoted or plain).lower().split() for quoted, plain in _REL.findall(parameters))
    ]
