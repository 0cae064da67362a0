"""The rules by which a URL is dropped, one after the other; the first that hits is the reason.

They are those of Megatron-LM's OpenWebText recipe (`blacklist_urls.py`), in its order, with its faults mended: a
missing comma let `.7z` and `.ai` through, the extension was looked for at the end of the whole address (so that a host
under `.app` or `.zip` was dropped, and a `#fragment` hid an extension), a regular expression refused international
host names, and the order of the output was that of a Python set.
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

from tasks.blacklist.listed import Listed

_ENDINGS = """
3gp 7z ai aif apk app avi bin bmp bz2 css csv dat deb dmg doc docx exe gif gifv gz iso jar jpeg jpg js log mid midi mkv
mov mp3 mp4 mpeg mpg ogg ogv otf pdf pkg png pps ppt pptx psd py qt ram rar sql svg swf tar.gz tar tgz tiff ttf txt wav
webm wma wmv xls xlsx xml xz zip
"""
EXTENSIONS = tuple(f".{name}" for name in _ENDINGS.split())
PORTS = {"http": 80, "https": 443}
HOST_LENGTH = 253
KNOWN_HOSTS = 2**17  # kept at a time: most lists go from site to site
FORBIDDEN = re.compile("[\x00-\x1f\x7f\ufffd\ud800-\udfff]")  # controls, undecodable bytes, lone surrogates
HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))+")
# What nine URLs of ten look like: well formed without a doubt, and taken apart in a fifth of the time that `urlsplit`
# takes. The rest goes the long way; a test holds the two equal.
PLAIN = re.compile(
    r"(https?)://((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63})(/[!-\"$->@-~]*)?(?:\?([!-\"$-~]*))?(?:#[!-~]*)?"
)
IP_LIKE = re.compile(r"(?:.*\.)?(?:\d+|0x[0-9a-f]*)")  # a last label that is a number makes the host an IPv4 address


@dataclass(frozen=True)
class Rules:
    """What a URL is compared with.

    Attributes:
        names: registered domains without their suffix.
        extensions: endings of the path, with the dot, lower case.
        listed: the user's lists.
        min_length: of the URL, in characters.
    """

    names: frozenset[str] = frozenset()
    extensions: tuple[str, ...] = ()
    listed: Listed = field(default_factory=Listed)
    min_length: int = 0


class Judge:
    """Gives each URL its verdict; what it finds out about a host is kept for the next URL of that host."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._endings = frozenset(ending.rpartition(".")[2] for ending in rules.extensions)
        self._hosts: dict[str, tuple[str, str, tuple[str, str] | None]] = {}

    def __call__(self, url: str) -> tuple[str, str, bytes]:
        """Why a URL is dropped, by the first rule that hits: domain, list, extension, length, form.

        Returns:
            (reason, detail, key): the reason is empty where the URL is kept. Two URLs of equal keys (16 bytes) are the
            same; the key is empty for a dropped one.
        """
        plain = PLAIN.fullmatch(url)
        if plain is None or len(url) < self.rules.min_length:
            return self.judge_any(url)
        scheme, host, path, query = plain.groups()
        path = path or "/"
        known = self._hosts.get(host)
        _, fault, verdict = known if known is not None else self._host(host)
        verdict = verdict or self._page(host, path, query)
        if verdict is None and (fault or len(host) > HOST_LENGTH):
            return self.judge_any(url)
        if verdict is not None:
            return (*verdict, b"")
        return "", "", make_key(f"{scheme}://{host}{path}?{query}" if query else f"{scheme}://{host}{path}")

    def judge_any(self, url: str) -> tuple[str, str, bytes]:
        """The same for a URL of any form, by the standard library's parser."""
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
        """The verdict by what comes after the host."""
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
        """A host name in ASCII, what is wrong with it, and the verdict on all of its URLs."""
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
        if len(self._hosts) >= KNOWN_HOSTS:
            self._hosts.clear()
        self._hosts[name] = host, fault, verdict
        return host, fault, verdict


def make_key(normalised: str) -> bytes:
    """Equal for equal texts: 128 bits of a hash."""
    return hashlib.blake2b(normalised.encode(), digest_size=16).digest()


def find_fault(url: str, parts: SplitResult, host: str) -> str:
    """What is wrong with the form of a URL; empty where nothing is."""
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
    elif len(host) > HOST_LENGTH or not HOST.fullmatch(host):
        return "not a full host name"
    return ""


def normalise(parts: SplitResult, host: str) -> str:
    """The form under which two URLs count as the same: host and scheme in lower case, no default port, no fragment,
    no user name, `/` for an empty path."""
    port = f":{parts.port}" if parts.port not in (None, PORTS[parts.scheme]) else ""
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}{port}{parts.path or '/'}{query}"


def site_name(host: str) -> str:
    """The registered domain without its suffix: `google` of `maps.google.co.uk`.

    Suffixes are ICANN's, not the private ones (so `blogspot` of `me.blogspot.com`); under a suffix that is not known
    the last label is taken for it.
    """
    found = get_tld(f"http://{host}", as_object=True, fail_silently=True, search_private=False)
    if found is not None and not isinstance(found, str):
        return found.domain
    labels = host.split(".")
    return labels[-2] if len(labels) > 1 and not IP_LIKE.fullmatch(host) else ""


@functools.cache
def blocked_names() -> frozenset[str]:
    """The built-in site names."""
    text = files("tasks").joinpath("data/blocked_names.txt").read_text("utf-8")
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))
