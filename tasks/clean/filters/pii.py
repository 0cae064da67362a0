"""Masks for personal data and secrets.

E-mail addresses and public IPv4 addresses are masked as in FineWeb (Penedo et al. 2024): the placeholders alternate
within a text and start again with the next, so that the masks depend on the text alone. Telephone numbers, IBANs,
credit cards and secrets become the name of their kind.
"""

import importlib.util
import ipaddress
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import not_
from typing import Self

from pydantic import Field, model_validator

from gpt2train.extras import needs_extra
from gpt2train.settings import Settings
from tasks.clean.filters.identifiers import Span, credit_cards, ibans, in_plain_characters, phone_numbers, phone_regions
from tasks.clean.filters.registry import Replacement, TextFilter, register_filter
from tasks.clean.filters.secrets import secrets

# Letters of scripts with spaces between words (`info@müller.de`): in others, a word beside an address is no part of it.
# Runs are bounded (64 characters before the @, RFC 5321), so that a megabyte of letters takes linear time.
_LETTERS = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u03ff\u0400-\u052f"
_LABEL = rf"(?:[{_LETTERS}0-9-]{{0,61}}[{_LETTERS}0-9])"
EMAIL = re.compile(
    rf"(?<![{_LETTERS}0-9_%+~-])[{_LETTERS}0-9_%+~-](?:\.?[{_LETTERS}0-9_%+~'-]){{0,63}}"
    rf"@(?:[{_LETTERS}0-9]{_LABEL}?\.){{1,10}}[{_LETTERS}]{_LABEL}"
)
# Not the number of a version or a section: v1.2.3.4, Version 1.2.3.4.
_NUMBERED = "".join(rf"(?<!{word}\s)" for word in ("[Vv]ersion", "[Rr]elease", "[Ss]ection", "[Cc]hapter", "§"))
IPV4 = re.compile(rf"(?<![\d.vV§])(?=\d{{1,3}}\.\d){_NUMBERED}(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?![\d]|\.\d)")
# All global unicast addresses lie in 2000::/3: the first group has four digits, which no time, MAC address or name
# of C++ or Perl has. What is before and after belongs to no number, path of names or longer row of groups.
_HEX = "[0-9A-Fa-f]"
IPV6 = re.compile(
    # Beginning with two digits, and looking back from there, it takes a third of the time.
    rf"[23](?={_HEX}{{3}}:)(?:(?<![A-Za-z0-9_.][23])(?<![0-9A-Fa-f:]:[23])|(?<=ip6:[23]))"
    rf"{_HEX}{{3}}(?:::?{_HEX}{{1,4}}){{1,7}}(?:::)?"
    r"(?![A-Za-z0-9_]|:[A-Za-z0-9:]|\.\d)"
)
NOT_PERSONAL = [  # documentation (RFC 3849, 9637), benchmarks (RFC 5180), hashes in place of addresses (ORCHID)
    ipaddress.IPv6Network(net) for net in ("2001:db8::/32", "3fff::/20", "2001:2::/48", "2001:10::/28", "2001:20::/28")
]
MODULES = {"phonenumbers": "phonenumbers", "python-stdnum": "stdnum", "bc-detect-secrets": "detect_secrets"}
FACTS = {
    "email": "masked_emails",
    "IP address": "masked_ip_addresses",
    "phone number": "masked_phone_numbers",
    "IBAN": "masked_ibans",
    "credit card": "masked_credit_cards",
    "secret": "masked_secrets",
}
DOCUMENTATION_IPV6 = ("2001:db8::1", "2001:db8::2")


class PiiSettings(Settings):
    """Masks for personal data."""

    emails: bool = False
    """Replace each e-mail address by a placeholder."""
    public_ips: bool = False
    """Replace each public IPv4 and IPv6 address by a placeholder; private ones such as 192.168.0.1 and fd00::1 are
    kept."""
    email_placeholders: tuple[str, ...] = Field(("email@example.com", "firstname.lastname@example.org"), min_length=1)
    """Placeholders of e-mail addresses, used alternately."""
    ip_placeholders: tuple[str, ...] = Field(
        ("22.214.171.124", "126.96.36.199", "188.8.131.52", "184.108.40.206", "220.127.116.11", "18.104.22.168"),
        min_length=1,
    )
    """Placeholders of IPv4 addresses, used alternately; those of FineWeb, random addresses that did not respond."""
    ipv6_placeholders: tuple[str, ...] = Field(
        DOCUMENTATION_IPV6, min_length=1, exclude_if=lambda given: given == DOCUMENTATION_IPV6
    )
    """Placeholders of IPv6 addresses, used alternately; those of the documentation prefix, which nobody has."""

    phone_numbers: bool = Field(False, exclude_if=not_)
    """Replace each telephone number: valid ones with `+` and a country code, and the national ones of `phone_regions`
    (needs `pip install 'gpt2train[privacy]'`, as do all settings below)."""
    phone_regions: tuple[str, ...] = Field(("US",), exclude_if=lambda regions: regions == ("US",))
    """Regions whose national telephone numbers are found, as two letters; empty: only numbers with a country code."""
    ibans: bool = Field(False, exclude_if=not_)
    """Replace each valid international bank account number."""
    credit_cards: bool = Field(False, exclude_if=not_)
    """Replace each number of a credit card: the digits of an issuer, with Luhn's check digit."""
    secrets: bool = Field(False, exclude_if=not_)
    """Replace each private key, API key, access token and password in a URL."""
    placeholder: str = Field("[{kind}]", exclude_if=lambda placeholder: placeholder == "[{kind}]")
    """Placeholder of what is neither an e-mail nor an IP address; `{kind}` becomes `phone number`, `IBAN`,
    `credit card` or `secret`."""

    @property
    def enabled(self) -> bool:
        """True if anything is to be masked."""
        return self.emails or self.public_ips or bool(self.packages)

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions whose rules decide what is masked."""
        needed = {"phonenumbers": self.phone_numbers, "python-stdnum": self.ibans or self.credit_cards}
        needed["bc-detect-secrets"] = self.secrets
        return tuple(sorted(name for name, is_needed in needed.items() if is_needed))

    @model_validator(mode="after")
    def _check(self) -> Self:
        for package in self.packages:
            if importlib.util.find_spec(MODULES[package]) is None:
                raise ValueError(str(needs_extra(f"a rule of {package}", "privacy")))
        if self.phone_numbers and (unknown := sorted(set(self.phone_regions) - phone_regions())):
            raise ValueError(f"no telephone numbers of region {unknown[0]!r} are known; give letters such as US")
        return self


def mask(text: str, settings: PiiSettings) -> Replacement:
    """Text with placeholders, their number as the fact `masked`, and the number of each kind (`masked_emails`, …)."""
    counts: Counter[str] = Counter()

    def replace(kind: str, find: Callable[[str], Iterable[Span]], placeholders: Sequence[str] = ()) -> None:
        nonlocal text
        given = placeholders or [settings.placeholder.replace("{kind}", kind)]
        text, count = _replace(text, find(in_plain_characters(text)), given)
        counts[kind] += count

    # Secrets first: a key may contain what looks like a number or an address.
    if settings.secrets:
        replace("secret", secrets)
    if settings.ibans:
        replace("IBAN", ibans)
    if settings.credit_cards:
        replace("credit card", credit_cards)
    if settings.emails and ("@" in text or "\uff20" in text):
        replace("email", partial(_matches, EMAIL, bool), settings.email_placeholders)
    if settings.phone_numbers:
        replace("phone number", lambda plain: phone_numbers(plain, settings.phone_regions))
    if settings.public_ips:
        replace("IP address", partial(_matches, IPV4, is_public), settings.ip_placeholders)
        replace("IP address", partial(_matches, IPV6, is_public_ipv6), settings.ipv6_placeholders)
    facts = {FACTS[kind]: count for kind, count in counts.items() if count}
    return Replacement(text, {"masked": sum(facts.values()), **facts} if facts else {})


def is_public(address: str) -> bool:
    """Returns True if a string is a public IPv4 address."""
    try:
        known = ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return known.is_global and not known.is_multicast


def is_public_ipv6(address: str) -> bool:
    """Return True if a string is a global unicast IPv6 address of a machine.

    Two groups of decimal digits (`2019::2020`) are more often years or a ratio.
    """
    if len([group for group in address.split(":") if group]) < 3 and address.replace(":", "").isdecimal():
        return False
    try:
        known = ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not any(known in network for network in NOT_PERSONAL)


def _matches(pattern: re.Pattern[str], is_personal: Callable[[str], bool], text: str) -> Iterator[Span]:
    return (found.span() for found in pattern.finditer(text) if is_personal(found[0]))


def _replace(text: str, spans: Iterable[Span], placeholders: Sequence[str]) -> tuple[str, int]:
    """Text with the next placeholder, in turn, for each group of overlapping spans, and the number of groups."""
    cycle = itertools.cycle(placeholders)
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done or not pieces:
            pieces += [text[done:start], next(cycle)]
        done = max(done, end)
    return "".join([*pieces, text[done:]]), len(pieces) // 2


register_filter("pii", TextFilter(PiiSettings, mask, order=600, packages=lambda settings: settings.packages))
