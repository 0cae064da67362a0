"""Domains as the user gives them, and the URLs that belong to one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from yarl import URL

from gpt2train.data.documents import read_lines
from gpt2train.data.packed_file import PACKED
from gpt2train.errors import UserError
from tasks.core.input_files import open_input
from tasks.core.url_lists import TEXT

LONGEST = 300  # bytes of a line
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?", re.ASCII)


@dataclass(frozen=True)
class Domain:
    """One domain."""

    name: str  # host name in lower case, without a leading `www.`
    host: str  # host name as given
    scheme: str | None = None  # scheme as given; None if both are to be tried, https first
    port: int | None = None  # port as given; None for the scheme's

    @property
    def starts(self) -> list[URL]:
        """Addresses of the start page, in the order in which they are tried."""
        schemes = [self.scheme] if self.scheme else ["https", "http"]
        return [URL.build(scheme=scheme, host=self.host, port=self.port, path="/") for scheme in schemes]

    def contains(self, url: URL, subdomains: bool) -> bool:
        """Return True if a URL is one of this domain, or with `subdomains` of one below it."""
        host = (url.raw_host or "").lower().rstrip(".")
        if url.scheme not in ("http", "https") or not host:
            return False
        return host.removeprefix("www.") == self.name or (subdomains and host.endswith(f".{self.name}"))


def find_domains(given: Sequence[str]) -> list[Domain]:
    """Return the domains of `--domains`: names, start pages, or files with one per line; without repeats.

    Raises:
        UserError: A file cannot be read, or an entry is no domain; the message names the place.
    """
    found: dict[Domain, None] = {}
    for item in given:
        entries: Iterator[tuple[str, str]] = iter([("--domains", item)])
        if Path(item).is_file() or item.endswith((*TEXT, *PACKED)):
            entries = _lines(item)
        for place, text in entries:
            found.setdefault(_parse(text, place))
    if given and not found:
        raise UserError(f"{', '.join(given)} holds no domain; one per line is expected")
    return list(found)


def _lines(location: str) -> Iterator[tuple[str, str]]:
    with open_input(location) as stream:
        for number, line in read_lines(stream, LONGEST):
            text = "" if line is None else line.decode("utf-8-sig", errors="replace").strip()
            if line is None or (text and not text.startswith("#")):
                yield f"{location}, row {number}", text


def _parse(text: str, place: str) -> Domain:
    try:
        url = URL(text if "://" in text else f"//{text}")
        host = (url.raw_host or "").lower().rstrip(".")
        port = url.explicit_port
    except ValueError:
        host = ""
    if not _NAME.fullmatch(host) or url.scheme not in ("", "http", "https") or url.path not in ("", "/"):
        raise UserError(f"{place}: {text[:100]!r} is no domain; expected a name as example.org, or https://example.org")
    return Domain(host.removeprefix("www."), host, url.scheme or None, port)
