"""Masks for what points to a person: e-mail addresses and public IP addresses (as FineWeb does; Penedo et al. 2024).

The placeholders take turns within a text and begin anew with the next, so that a text's mask depends on it alone.
"""

import ipaddress
import itertools
import re
from collections.abc import Callable, Sequence

from pydantic import Field

from gpt2train.settings import Settings

# Runs are bounded (64 characters before the @, RFC 5321), so that a megabyte of letters takes no more than linear time.
EMAIL = re.compile(
    r"(?<![A-Za-z0-9_%+~-])[A-Za-z0-9_%+~-](?:\.?[A-Za-z0-9_%+~'-]){0,63}"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,10}[A-Za-z](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])"
)
IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")


class PiiSettings(Settings):
    """Masks for addresses of persons."""

    emails: bool = False
    """Write a placeholder for each e-mail address."""
    public_ips: bool = False
    """Write a placeholder for each IPv4 address that is reachable from everywhere; 192.168.0.1 and the like stay."""
    email_placeholders: tuple[str, ...] = Field(("email@example.com", "firstname.lastname@example.org"), min_length=1)
    """Taken in turn."""
    ip_placeholders: tuple[str, ...] = Field(
        ("22.214.171.124", "126.96.36.199", "188.8.131.52", "184.108.40.206", "220.127.116.11", "18.104.22.168"),
        min_length=1,
    )
    """Taken in turn; FineWeb's, drawn at random among addresses that did not answer."""


def mask(text: str, settings: PiiSettings) -> tuple[str, int]:
    """The text with placeholders, and how many."""
    count = 0
    if settings.emails and "@" in text:
        text, found = _replace(EMAIL, text, settings.email_placeholders, lambda address: True)
        count += found
    if settings.public_ips:
        text, found = _replace(IPV4, text, settings.ip_placeholders, is_public)
        count += found
    return text, count


def is_public(address: str) -> bool:
    """Whether an IPv4 address is one of the public internet's; False for what is none."""
    try:
        known = ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return known.is_global and not known.is_multicast


def _replace(
    pattern: re.Pattern[str], text: str, placeholders: Sequence[str], personal: Callable[[str], bool]
) -> tuple[str, int]:
    turn = itertools.cycle(placeholders)
    count = 0

    def placeholder(found: re.Match[str]) -> str:
        nonlocal count
        if not personal(found[0]):
            return found[0]
        count += 1
        return next(turn)

    return pattern.sub(placeholder, text), count
