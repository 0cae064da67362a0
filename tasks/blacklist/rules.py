"""URL rules of the blacklist, applied in order; the first rule that matches is the reason.

They follow Megatron-LM's OpenWebText recipe (`blacklist_urls.py`), in its order, with its faults fixed: a missing comma
let `.7z` and `.ai` pass, the extension was searched for at the end of the whole URL (so that hosts under `.app` or
`.zip` were dropped, and a `#fragment` hid an extension), a regular expression rejected international host names, and
the output had the order of a Python set.
"""

import functools
import hashlib
import ipaddress
import re
from dataclasses import dataclass, field
from importlib.resources import files
from urllib.parse import SplitResult, urlsplit

import idna
from tld import get_tld

from tasks.blacklist.blocklists import Blocklists, read_blocklists
from tasks.blacklist.settings import BlacklistSettings

_ENDINGS = """
3gp 7z ai aif apk app avi bin bmp bz2 css csv dat deb dmg doc docx exe gif gifv gz iso jar jpeg jpg js log mid midi mkv
mov mp3 mp4 mpeg mpg ogg ogv otf pdf pkg png pps ppt pptx psd py qt ram rar sql svg swf tar.gz tar tgz tiff ttf txt wav
webm wma wmv xls xlsx xml xz zip
"""
EXTENSIONS = tuple(f".{name}" for name in _ENDINGS.split())
PORTS = {"http": 80, "https": 443}
MAX_HOST_LENGTH = 253  # characters
MAX_CACHED_HOSTS = 2**17  # most lists are ordered by site
FORBIDDEN = re.compile("[\x00-\x1f\x7f\ufffd\ud800-\udfff]")  # controls, undecodable bytes, lone surrogates
HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))+")
# Fast path for nine of ten URLs: certainly well formed, and parsed in a fifth of the time of `urlsplit`. Other URLs
# take the slow path; a test compares the two.
PLAIN = re.compile(
    r"(https?)://((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63})(/[!-\"$->@-~]*)?(?:\?([!-\"$-~]*))?(?:#[!-~]*)?"
)
IP_LIKE = re.compile(r"(?:.*\.)?(?:\d+|0x[0-9a-f]*)")  # a last label that is a number makes the host an IPv4 address


@dataclass(frozen=True)
class Rules:
    """Rules that drop URLs."""

    names: frozenset[str] = frozenset()  # registered domains without their public suffix
    extensions: tuple[str, ...] = ()  # extensions of the path, with the dot, in lower case
    listed: Blocklists = field(default_factory=Blocklists)  # the user's blocklists
    min_length: int = 0  # minimum length of the URL in characters


def rules_of(settings: BlacklistSettings) -> Rules:
    """Return the rules that apply to each URL alone: not the one on duplicates, nor Megatron-LM's faults.

    Raises:
        UserError: A blocklist cannot be read.
    """
    names = blocked_names() if settings.block_names else frozenset()
    extensions = EXTENSIONS if settings.block_extensions else ()
    return Rules(names, extensions, read_blocklists(settings.domain_lists), settings.min_length)


class UrlClassifier:
    """Classifier of URLs, with a cache of the verdicts on hosts."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._endings = frozenset(ending.rpartition(".")[2] for ending in rules.extensions)
        self._hosts: dict[str, tuple[str, str, tuple[str, str] | None]] = {}

    def __call__(self, url: str) -> tuple[str, str, bytes]:
        """Classify a URL by the first rule that matches: domain, list, extension, length, form.

        Returns:
            (reason, detail, key): the reason is empty for a kept URL. URLs with equal keys (16 bytes) are duplicates;
            the key is empty for a dropped URL.
        """
        plain = PLAIN.fullmatch(url)
        if plain is None or len(url) < self.rules.min_length:
            return self.classify_any(url)
        scheme, host, path, query = plain.groups()
        path = path or "/"
        known = self._hosts.get(host)
        _, fault, verdict = known if known is not None else self._host(host)
        verdict = verdict or self._page(host, path, query)
        if verdict is None and (fault or len(host) > MAX_HOST_LENGTH):
            return self.classify_any(url)
        if verdict is not None:
            return (*verdict, b"")
        return "", "", make_key(f"{scheme}://{host}{path}?{query}" if query else f"{scheme}://{host}{path}")

    def classify_any(self, url: str) -> tuple[str, str, bytes]:
        """Classify a URL of any form with the standard library's parser (slow path); the result is the same."""
        try:
            parts = urlsplit(url)
            name = parts.hostname or ""
        except ValueError as error:
            return (*(self._too_short(url) or ("malformed", str(error))), b"")
        known = self._hosts.get(name)
        host, fault, verdict = known if known is not None else self._host(name)
        verdict = verdict or (self._page(host, parts.path, parts.query) if host else None) or self._too_short(url)
        if verdict is not None:
            return (*verdict, b"")
        if fault := fault or find_fault(url, parts, host):
            return "malformed", fault, b""
        return "", "", make_key(normalise(parts, host))

    def _page(self, host: str, path: str, query: str | None) -> tuple[str, str] | None:
        """Return (reason, detail) by path and query, or None."""
        listed = self.rules.listed
        if listed.urls and (found := listed.find_url(host, path, query or "")):
            return "listed_url", f"{found[0]} ({found[1]})"
        ending = path.rpartition(".")[2].lower()
        return ("forbidden_extension", ending) if ending in self._endings and "." in path else None

    def _too_short(self, url: str) -> tuple[str, str] | None:
        if len(url) >= self.rules.min_length:
            return None
        return "too_short", f"{len(url)} characters, at least {self.rules.min_length} expected"

    def _host(self, name: str) -> tuple[str, str, tuple[str, str] | None]:
        """Return a host name in ASCII, its fault (empty if none), and the verdict on all of its URLs; cached."""
        host, fault, verdict = name.rstrip("."), "", None
        if not host.isascii():
            try:
                host = idna.encode(host, uts46=True).decode()
            except idna.IDNAError as error:
                host, fault = "", f"host name: {error}"
        if host:
            if not self.rules.names.isdisjoint(host.split(".")) and (site := site_name(host)) in self.rules.names:
                verdict = "blacklisted_domain", site
            elif len(self.rules.listed.domains) and (found := self.rules.listed.domains.find(host)):
                verdict = "listed_domain", f"{found[0]} ({found[1]})"
        if len(self._hosts) >= MAX_CACHED_HOSTS:
            self._hosts.clear()
        self._hosts[name] = host, fault, verdict
        return host, fault, verdict


def make_key(normalised: str) -> bytes:
    """Return the key of a normalized URL: a 128-bit hash."""
    return hashlib.blake2b(normalised.encode(), digest_size=16).digest()


def find_fault(url: str, parts: SplitResult, host: str) -> str:
    """Return the fault in the form of a URL; empty if it is well formed."""
    if parts.scheme not in PORTS:
        return f"scheme {parts.scheme[:20]!r}, http or https expected" if parts.scheme else "no http://"
    if not host:
        return "no host"
    if FORBIDDEN.search(url):
        return "control or undecodable characters"
    try:
        if parts.port == 0:
            return "port 0"
    except ValueError:
        return "port is no number up to 65535"
    if IP_LIKE.fullmatch(host) or ":" in host:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return "a number, but no IP address, as host"
    elif len(host) > MAX_HOST_LENGTH or not HOST.fullmatch(host):
        return "not a full host name"
    return ""


def normalise(parts: SplitResult, host: str) -> str:
    """Normalize a URL, for the comparison of URLs.

    Host and scheme are in lower case; the default port, the fragment and the user name are removed; an empty path
    becomes `/`.
    """
    port = f":{parts.port}" if parts.port not in (None, PORTS[parts.scheme]) else ""
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}{port}{parts.path or '/'}{query}"


def site_name(host: str) -> str:
    """Return the registered domain without its public suffix: `google` for `maps.google.co.uk`.

    Only ICANN's suffixes count, not private ones (`blogspot` for `me.blogspot.com`). An unknown suffix is taken to be
    the last label.
    """
    found = get_tld(f"http://{host}", as_object=True, fail_silently=True, search_private=False)
    if found is not None and not isinstance(found, str):
        return found.domain
    labels = host.split(".")
    return labels[-2] if len(labels) > 1 and not IP_LIKE.fullmatch(host) else ""


@functools.cache
def blocked_names() -> frozenset[str]:
    """Return the built-in site names."""
    lines = files("tasks.blacklist").joinpath("blocked_names.txt").read_text("utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())
