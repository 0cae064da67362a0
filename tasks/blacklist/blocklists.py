"""The user's blocklists in the layout of UT1: domains with their subdomains, and URL prefixes.

UT1's list of adult domains has 4.6 million lines. A dict of them takes 0.8 GB in every worker; here they are sorted in
one block of bytes and found by bisection, exactly, with 16 bytes per domain in addition to its text.
"""

import bisect
import contextlib
import hashlib
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import idna

from gpt2train.data.documents import read_lines
from gpt2train.data.packed_file import PACKED
from gpt2train.errors import UserError
from gpt2train.store.object_stores import check_store_url
from tasks.core.input_files import file_system, open_input

LONGEST = 8192  # bytes of a line; no host name or URL is longer
HOSTS_LINE = re.compile(r"(?:[0-9.]+|[0-9a-f]*:[0-9a-f:]*(?:%\w+)?)\s+(?=\S)")  # the address of a hosts file
DOMAIN = re.compile(r"[a-z0-9_.-]+|[0-9a-f:]*:[0-9a-f:]*")  # or an address
ADBLOCK = re.compile(r"\|\|([^/^$|*]+)\^?(?:\$.*)?")  # of a domain
PREFIX_END = re.compile(r"[/?&#;]")  # characters at which a listed URL prefix can end


@dataclass(frozen=True)
class Domains:
    """Sorted domains with their categories."""

    text: bytes = b""  # concatenation of the domains, in order
    ends: "array[int]" = field(default_factory=lambda: array("Q"))  # end of each domain in `text`
    kinds: "array[int]" = field(default_factory=lambda: array("H"))  # index into `categories` of each domain
    categories: tuple[str, ...] = ()  # names of the categories

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> bytes:
        return self.text[self.ends[index - 1] if index else 0 : self.ends[index]]

    def find(self, host: str) -> tuple[str, str] | None:
        """Return the longest listed domain that is the host or a parent of it, with its category; None if none is."""
        while host:
            key = host.encode()
            index = bisect.bisect_left(self, key)
            if index < len(self) and self[index] == key:
                return host, self.categories[self.kinds[index]]
            host = host.partition(".")[2]
        return None


@dataclass(frozen=True)
class Blocklists:
    """The user's blocklists."""

    domains: Domains = field(default_factory=Domains)  # blocked domains; their subdomains are blocked too
    urls: dict[str, str] = field(default_factory=dict)  # URL prefix (lower case, without `www.`) -> category
    hosts: frozenset[str] = frozenset()  # hosts of `urls`

    def find_url(self, host: str, path: str, query: str) -> tuple[str, str] | None:
        """Return the longest listed prefix of a URL that ends at a delimiter, with its category; None if none does."""
        host = host.removeprefix("www.")
        if host not in self.hosts:
            return None
        url = f"{host}{path}?{query}".lower() if query else f"{host}{path}".lower()
        ends = [len(url), *(end for found in PREFIX_END.finditer(url) for end in (found.start(), found.end()))]
        for end in sorted(ends, reverse=True):
            if category := self.urls.get(url[:end]):
                return url[:end], category
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
    """Pack (domain, category) pairs into a sorted block; the first category of a domain counts."""
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


def read_blocklists(paths: Sequence[str]) -> Blocklists:
    """Read the user's lists; the category is the file's name, or the folder's if the file is `domains` or `urls`.

    Raises:
        UserError: A list cannot be read, a folder holds none, or a file has lines but no domain.
    """
    domains: list[tuple[str, str]] = []
    urls: dict[str, str] = {}
    for path in paths:
        for name, category, are_urls in _files(path):
            entry, before = "", len(domains)
            with open_input(name) as stream:
                for _, line in read_lines(stream, LONGEST):
                    line_text = (line or b"").decode("utf-8-sig", errors="replace").strip().lower()
                    if not line_text or line_text.startswith(("#", "!")):
                        continue
                    entry = line_text
                    if are_urls:
                        urls.setdefault(entry.partition("://")[2] or entry, category)
                    else:
                        domains += [(domain, category) for domain in domains_of(entry)]
            if entry and not are_urls and len(domains) == before:
                raise UserError(f"{name} holds no domain; expected one per line, as example.org, not {entry[:60]!r}")
    urls = {url.removeprefix("www."): category for url, category in urls.items()}
    return Blocklists(pack(domains), urls, frozenset(re.split(r"[/?:]", url, maxsplit=1)[0] for url in urls))


def domains_of(line: str) -> list[str]:
    """Return the domains of a line: one, or those of a hosts file, with `*.`, or as `||example.org^`; in ASCII."""
    if DOMAIN.fullmatch(line):  # nearly all
        return [line.strip(".")]
    if (rule := ADBLOCK.fullmatch(line)) is not None:
        line = rule[1]
    line = re.split(r"\s#", line, maxsplit=1)[0]
    names = HOSTS_LINE.sub("", line, count=1)
    found = []
    for word in names.split() if names != line else [names]:
        name = word.strip().removeprefix("*.").strip(".")
        if not name.isascii():
            with contextlib.suppress(idna.IDNAError):
                name = idna.encode(name, uts46=True).decode()
        if DOMAIN.fullmatch(name):
            found.append(name)
    return found


def check_blocklists(paths: Sequence[str]) -> None:
    """Check that the user's lists can be opened, without reading them completely.

    Raises:
        UserError: A list is missing or cannot be read.
    """
    for path in paths:
        for name, _, _ in _files(path):
            with open_input(name) as stream:
                stream.read(1)


def _files(location: str) -> list[tuple[str, str, bool]]:
    """Return (file, category, True if it holds URL prefixes) for each list of a file or folder."""
    check_store_url(location)
    fs, path = file_system(location)
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
        remedy = "expected a file, <category>.txt, <category>/domains or <category>/urls"
        raise UserError(f"no list in {location}, given with --blacklist.domain-lists; {remedy}")
    return found
