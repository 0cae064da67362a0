"""Guard against server-side request forgery (SSRF): only public addresses are connected to.

A page from the open web must not reach the machine that fetches it or its network. A name is resolved once, every
answer is checked, and the connection goes to a checked answer: a name server that changes its answer in between (DNS
rebinding) has no effect. Addresses written as numbers bypass the resolver, so they are checked separately, in every
spelling that some parser accepts as an address, whatever the HTTP client makes of it.
"""

import asyncio
import fnmatch
import functools
import ipaddress
import re
import socket
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str], Awaitable[Sequence[str]]]

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
UNICAST = ipaddress.IPv6Network("2000::/3")  # the only block that IANA has allocated
# Special blocks inside it that Python 3.11's copy of the registry lacks or that depend on Python's version: Teredo and
# protocol assignments, documentation.
SPECIAL = [ipaddress.IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "3fff::/20")]
# Likewise for IPv4: protocol assignments, 6to4 relays, direct delegation and AS112.
SPECIAL_V4 = [ipaddress.IPv4Network(block) for block in ("192.0.0.0/24", "192.88.99.0/24", "192.175.48.0/24")]

# Metadata services, from which a cloud's machine gets its credentials. Most of these addresses are private anyway;
# Azure's is public. A network in `allow_private` does not allow them unless it is the single address.
METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "169.254.169.254",  # AWS, Azure, GCP, OpenStack and others
        "169.254.170.2",  # AWS containers
        "169.254.170.23",
        "168.63.129.16",  # Azure
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",
        "fd20:ce::254",  # GCP
        "fd00:42::42",  # Scaleway
    )
)
METADATA_NAMES = (
    *("instance-data", "instance-data.ec2.internal", "metadata", "metadata.azure.internal", "metadata.goog"),
    *("metadata.google.internal", "metadata.packet.net", "metadata.tencentyun.com"),
)
NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")  # a last label like this makes a host an IPv4 address (WHATWG URL)
HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?", re.IGNORECASE)
MAX_HOST = 254  # characters, with a dot at the end

MAX_CACHED_NAMES = 50_000  # the least recently used one is evicted first
CACHE_SECONDS = 300.0  # time to live of an answer, also if the name server's is shorter


class NotPublicError(OSError):
    """A host has an address that is not public; no connection to it was made."""


class HostNotFoundError(OSError):
    """The name could not be resolved."""


def is_public(address: str | Address, allowed: Sequence[Network] = ()) -> bool:
    """Return True if a connection to this address is allowed: it is public, or in a network of `allowed`.

    An address with a zone (`%eth0`) is never public. An IPv6 address with an embedded IPv4 address (mapped,
    NAT64, 6to4) is checked by that address.

    Raises:
        ValueError: The text is not an address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or (ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in NAT64 else ip.sixtofour)
        if inner is not None:
            return is_public(inner, allowed)
    named = [network for network in allowed if ip.version == network.version and ip in network]
    if ip in METADATA:
        return any(network.num_addresses == 1 for network in named)
    if named:
        return True
    if isinstance(ip, ipaddress.IPv4Address):
        special = any(ip in network for network in SPECIAL_V4)
    else:
        special = ip not in UNICAST or ip.scope_id is not None or any(ip in network for network in SPECIAL)
    return ip.is_global and not (special or ip.is_multicast or ip.is_reserved)


@functools.lru_cache(maxsize=4096)
def literal(host: str) -> Address | None:
    """Parse a host that is written as an address; None for a name.

    Raises:
        ValueError: The host is a number in a non-standard spelling (`127.1`, `2130706433`, `0x7f.1`, `0177.0.0.1`), or
            it is not a valid host.
    """
    if "[" in host or ":" in host:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    plain = unicodedata.normalize("NFKC", host).replace("\u3002", ".")
    digits = "".join(str(unicodedata.digit(char)) if char.isdigit() else char for char in plain)
    if NUMBER.fullmatch(digits.rstrip(".").rpartition(".")[2]):
        return ipaddress.IPv4Address(digits.rstrip("."))  # accepts only four decimal numbers without leading zeros
    if len(host) > MAX_HOST or not HOST.fullmatch(host):
        raise ValueError("not a host name")
    return None


def refuse(url: URL, ports: Sequence[int], allowed: Sequence[Network]) -> tuple[str, str] | None:
    """Return why a first URL or a redirect may not be requested, by scheme, port and address: (reason, detail)."""
    host = url.raw_host
    if url.scheme not in ("http", "https") or not host:
        return "scheme_forbidden", f"{url.scheme[:20] or 'no scheme'}, http or https expected"
    if url.port not in ports:
        return "port_forbidden", f"port {url.port}, allowed: {', '.join(map(str, ports))}"
    try:
        address = literal(host)
    except ValueError:
        return "malformed", f"host {host[:100]!r}, a name or a plain address expected"
    if host.lower().rstrip(".") in METADATA_NAMES:
        return "not_public_address", f"{host}, where a cloud keeps the credentials of its machines"
    if address is not None and not is_public(address, allowed):
        return "not_public_address", str(address)
    return None


async def system_lookup(host: str) -> Sequence[str]:
    """Resolve a name by the operating system's resolver."""
    loop = asyncio.get_running_loop()
    return [str(info[4][0]) for info in await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def target_of(host: str, connect_to: Mapping[str, str]) -> str | None:
    """Return the `address:port` to connect to instead of a host, or None."""
    return next((to for pattern, to in connect_to.items() if fnmatch.fnmatch(host, pattern)), None)


class GuardedResolver(AbstractResolver):
    """Resolver for aiohttp that returns checked addresses only, to which aiohttp then connects.

    With `connect_to`, the URL and the Host header stay, and the address is checked like any other. The answers of
    `lookup` are cached for five minutes, failures are not.
    """

    def __init__(
        self, allowed: Sequence[Network], connect_to: Mapping[str, str], lookup: Lookup = system_lookup
    ) -> None:
        self.allowed, self.connect_to, self.lookup = allowed, connect_to, lookup
        self._cache: OrderedDict[str, tuple[float, Sequence[str]]] = OrderedDict()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a name.

        Raises:
            HostNotFoundError: The name has no address.
            NotPublicError: One of its addresses is not public; then none of them is used.
        """
        target = target_of(host, self.connect_to)
        if target is not None:
            address, _, number = target.rpartition(":")
            addresses: Sequence[str] = [address.strip("[]")]
            port = int(number)
        else:
            addresses = await self._addresses(host)
        if not addresses:
            raise HostNotFoundError(f"{host}: no address")
        for address in addresses:
            if not is_public(address, self.allowed):
                raise NotPublicError(f"{host} has the address {address}")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def _addresses(self, host: str) -> Sequence[str]:
        until, addresses = self._cache.get(host, (0.0, ()))
        if until < time.monotonic():
            try:
                addresses = await self.lookup(host)
            except (OSError, UnicodeError) as error:
                raise HostNotFoundError(f"{host}: {getattr(error, 'strerror', None) or error}") from error
            self._cache[host] = time.monotonic() + CACHE_SECONDS, addresses
        self._cache.move_to_end(host)
        while len(self._cache) > MAX_CACHED_NAMES:
            self._cache.popitem(last=False)
        return addresses

    async def close(self) -> None:
        """Do nothing: the resolver holds no resources."""
