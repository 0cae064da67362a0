"""Targets of a removal: URLs, domains, and files of them."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import idna

from gpt2train.errors import UserError
from tasks.core.forgotten import REASON, Forgotten, domain_hash, url_hash
from tasks.core.url_lists import LONGEST

# A label may have any character beyond ASCII, such as an emoji.
DOMAIN = re.compile(r"(?:(?:[\w-]|[^\x00-\x7f\s]){1,63}\.)+(?:[\w-]|[^\x00-\x7f\s]){1,63}|localhost")
BOM = "\ufeff"


def read_targets(given: Sequence[str]) -> list[str]:
    """Return the URLs and domains that are given, those in files included, in order without repeats.

    Raises:
        UserError: A target is empty or too long, or a file cannot be read or has none.
    """
    found: dict[str, None] = {}
    for target in given:
        entries = _lines(Path(target)) if _is_file(target) else [target.strip()]
        for entry in entries:
            if not entry or len(entry) > LONGEST or entry.startswith(f"{REASON}:"):
                raise UserError(f"{entry[:60]!r} is no URL and no domain; give https://host/page, a domain or a file")
            found[entry] = None
    return list(found)


def _is_file(target: str) -> bool:
    try:
        return "://" not in target and Path(target).is_file()
    except OSError:  # longer than a name of a file may be, as addresses without a scheme are
        return False


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8").removeprefix(BOM)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text, a URL or domain per line: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UserError(f"{path} has no URL and no domain; give one per line")
    return found


def domain_of(target: str) -> str | None:
    """Return the domain that a target may mean, in the form of a host; None for a URL."""
    if not DOMAIN.fullmatch(target.rstrip(".")):
        return None
    name = target.rstrip(".")
    try:
        return idna.encode(name, uts46=True).decode().lower()
    except idna.IDNAError:
        with contextlib.suppress(UnicodeError):  # a symbol, which older rules admit, as those that parse URLs do
            return name.encode("idna").decode().lower()
        return name.lower()


def selection_of(targets: Sequence[str]) -> Forgotten:
    """Return the list of these targets; one with the form of a domain may also be the name of a page's file."""
    domains = [domain for target in targets if (domain := domain_of(target))]
    return Forgotten(
        urls=tuple(sorted({url_hash(target) for target in targets})),
        domains=tuple(sorted({domain_hash(domain) for domain in domains})),
    )
