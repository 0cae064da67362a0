"""The user's own lists, in the layout of UT1: domains with all below them, and URLs by the beginning of their path.

UT1's list of adult domains has 4.6 million lines. A dict of them takes 0.8 GB in every worker; here they lie sorted in
one block of bytes, looked up by bisection: 16 bytes a domain and its text, exact.
"""

import bisect
import hashlib
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import fsspec

from gpt2train.errors import UserError
from tasks.inputs import PACKED, open_input, read_lines

LONGEST = 8192  # bytes of a line; no host name or address is longer
CUT = re.compile(r"[/?&#;]")  # where a listed beginning of a path may end


@dataclass(frozen=True)
class Domains:
    """Domains and the category of each, sorted.

    Attributes:
        text: the domains in order, one after the other.
        ends: where each of them ends in `text`.
        kinds: index into `categories` of each.
        categories: names.
    """

    text: bytes = b""
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    kinds: "array[int]" = field(default_factory=lambda: array("H"))
    categories: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> bytes:
        return self.text[self.ends[index - 1] if index else 0 : self.ends[index]]

    def find(self, host: str) -> tuple[str, str] | None:
        """The longest listed domain that the host is, or lies under, with its category."""
        while host:
            word = host.encode()
            index = bisect.bisect_left(self, word)
            if index < len(self) and self[index] == word:
                return host, self.categories[self.kinds[index]]
            host = host.partition(".")[2]
        return None


@dataclass(frozen=True)
class Listed:
    """What the user's lists hold.

    Attributes:
        domains: blocked with all below them.
        urls: host and beginning of the path, lower case, without `www.` -> category.
        hosts: the hosts of `urls`.
    """

    domains: Domains = field(default_factory=Domains)
    urls: dict[str, str] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset()

    def find_url(self, host: str, path: str, query: str) -> tuple[str, str] | None:
        """The longest listed beginning of a URL, cut where a part of it ends, with its category."""
        host = host.removeprefix("www.")
        if host not in self.hosts:
            return None
        place = f"{host}{path}?{query}".lower() if query else f"{host}{path}".lower()
        cuts = [len(place), *(cut for found in CUT.finditer(place) for cut in (found.start(), found.end()))]
        for cut in sorted(cuts, reverse=True):
            if category := self.urls.get(place[:cut]):
                return place[:cut], category
        return None

    @property
    def digest(self) -> str:
        """Hash of all entries."""
        state = hashlib.blake2b(digest_size=16)
        for part in (self.domains.text, self.domains.ends.tobytes(), self.domains.kinds.tobytes()):
            state.update(part)
        state.update(repr((self.domains.categories, sorted(self.urls.items()))).encode())
        return state.hexdigest()


def pack(domains: Iterable[tuple[str, str]]) -> Domains:
    """Domains with their categories as a sorted block; the first category of a domain counts."""
    entries = sorted(dict(reversed([(domain.encode(), category) for domain, category in domains])).items())
    categories = tuple(sorted({category for _, category in entries}))
    number = {category: index for index, category in enumerate(categories)}
    packed = Domains(b"".join(domain for domain, _ in entries), categories=categories)
    end = 0
    for domain, category in entries:
        end += len(domain)
        packed.ends.append(end)
        packed.kinds.append(number[category])
    return packed


def read_listed(places: Sequence[str]) -> Listed:
    """Read the user's lists; the category is the file's name, or the folder's where the file is `domains` or `urls`.

    Raises:
        UserError: a list cannot be read, or a folder holds none.
    """
    domains: list[tuple[str, str]] = []
    urls: dict[str, str] = {}
    for place in places:
        for name, category, are_urls in _files(place):
            with open_input(name) as stream:
                for _, line in read_lines(stream, LONGEST):
                    entry = (line or b"").decode("utf-8-sig", errors="replace").strip().lower()
                    if not entry or entry.startswith("#"):
                        continue
                    if are_urls:
                        urls.setdefault(entry.partition("://")[2] or entry, category)
                    else:
                        domains.append((entry.strip("."), category))
    urls = {url.removeprefix("www."): category for url, category in urls.items()}
    return Listed(pack(domains), urls, frozenset(re.split(r"[/?:]", url, maxsplit=1)[0] for url in urls))


def check_listed(places: Sequence[str]) -> None:
    """Look whether the user's lists are there, without going through them.

    Raises:
        UserError: one is not, or cannot be read.
    """
    for place in places:
        for name, _, _ in _files(place):
            with open_input(name) as stream:
                stream.read(1)


def _files(place: str) -> list[tuple[str, str, bool]]:
    """(file, category, whether it holds URLs) of a file or folder."""
    fs, path = fsspec.core.url_to_fs(place)
    in_folder = fs.isdir(path)
    found = []
    for name in sorted(fs.find(path)) if in_folder else [path]:
        parts = PurePosixPath(name)
        if parts.suffix in PACKED:
            parts = parts.with_suffix("")
        if parts.name in ("domains", "urls"):
            found.append((fs.unstrip_protocol(name), parts.parent.name, parts.name == "urls"))
        elif parts.suffix == ".txt" or not in_folder:
            found.append((fs.unstrip_protocol(name), parts.stem, False))
    if not found:
        raise UserError(
            f"no list in {place}, given with --blacklist.domain-lists; "
            "expected a file, <category>.txt, <category>/domains or <category>/urls"
        )
    return found
