"""Parsers of the header fields X-Robots-Tag, Content-Signal and Link, which may be malformed."""

import re
from collections.abc import Collection, Iterable, Iterator

# Directives whose value follows a colon: their name is not that of an agent. A date may hold commas.
VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
EVERYONE = "*"
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
    for part in value.lower().split(","):
        name, colon, rest = part.partition(":")
        if colon:
            if name.strip() in VALUED:
                continue
            agent, part = name.strip(), rest
            if rest.partition(":")[0].strip() in VALUED:
                continue
        for word in part.split():
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
