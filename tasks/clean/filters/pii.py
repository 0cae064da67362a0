"""Masks for personal data: e-mail addresses and public IP addresses (as in FineWeb; Penedo et al. 2024).

The placeholders alternate within a text and start again with the next, so that the masks depend on the text alone.
"""

import ipaddress
import itertools
import re
from collections.abc import Callable, Sequence

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.registry import Replacement, TextFilter, register_filter

# Runs are bounded (64 characters before the @, RFC 5321), so that a megabyte of letters takes linear time.
EMAIL = re.compile(
    r"(?<![A-Za-z0-9_%+~-])[A-Za-z0-9_%+~-](?:\.?[A-Za-z0-9_%+~'-]){0,63}"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,10}[A-Za-z](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])"
)
IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")


class PiiSettings(Settings):
    """Masks for personal data."""

    emails: bool = False
    """Replace each e-mail address by a placeholder."""
    public_ips: bool = False
    """Replace each public IPv4 address by a placeholder; private ones such as 192.168.0.1 are kept."""
    email_placeholders: tuple[str, ...] = Field(("email@example.com", "firstname.lastname@example.org"), min_length=1)
    """Placeholders of e-mail addresses, used alternately."""
    ip_placeholders: tuple[str, ...] = Field(
        ("22.214.171.124", "126.96.36.199", "188.8.131.52", "184.108.40.206", "220.127.116.11", "18.104.22.168"),
        min_length=1,
    )
    """Placeholders of IP addresses, used alternately; those of FineWeb, random addresses that did not respond."""

    @property
    def enabled(self) -> bool:
        """True if anything is to be masked."""
        return self.emails or self.public_ips


def mask(text: str, settings: PiiSettings) -> Replacement:
    """Text with placeholders, and their number as the fact `masked`."""
    emails = addresses = 0
    if settings.emails and "@" in text:
        text, emails = _replace(EMAIL, text, settings.email_placeholders, lambda address: True)
    if settings.public_ips:
        text, addresses = _replace(IPV4, text, settings.ip_placeholders, is_public)
    return Replacement(text, {"masked": emails + addresses} if emails + addresses else {})


def is_public(address: str) -> bool:
    """Returns True if a string is a public IPv4 address."""
    try:
        known = ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return known.is_global and not known.is_multicast


def _replace(
    pattern: re.Pattern[str], text: str, placeholders: Sequence[str], personal: Callable[[str], bool]
) -> tuple[str, int]:
    cycle = itertools.cycle(placeholders)
    count = 0

    def placeholder(found: re.Match[str]) -> str:
        nonlocal count
        if not personal(found[0]):
            return found[0]
        count += 1
        return next(cycle)

    return pattern.sub(placeholder, text), count


register_filter("pii", TextFilter(PiiSettings, mask, order=600))
