"""Which addresses may be asked: public ones, whatever the URL, the name server or a redirect says.

A page from the open web must not reach the machine it is fetched on or its network (server-side request forgery). A
name is resolved once, every answer is judged, and the connection goes to an answer that was judged: a name server that
changes its mind in between (DNS rebinding) changes nothing. Addresses written as numbers bypass the resolver, so they
are judged apart.
"""

import asyncio
import fnmatch
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str], Awaitable[Sequence[str]]]

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
UNICAST = ipaddress.IPv6Network("2000::/3")  # all that IANA has given out
# Special blocks inside it that Python 3.11's registry copy does not know as such, or whose answer depends on its
# version: Teredo and protocol assignments, documentation.
SPECIAL = [ipaddress.IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "3fff::/20")]
# Likewise for IPv4: protocol assignments, 6to4 relays, direct delegation and AS112.
SPECIAL_V4 = [ipaddress.IPv4Network(block) for block in ("192.0.0.0/24", "192.88.99.0/24", "192.175.48.0/24")]

KNOWN_NAMES = 50_000  # answers kept; the name unused for longest goes first
NAME_SECONDS = 300.0  # how long an answer counts; a name server that says less is asked no more often


class NotPublic(OSError):
    """A host has an address that is not public, so no connection to it was made."""


class NoSuchHost(OSError):
    """The name could not be resolved."""


def is_public(address: str | Address, allowed: Sequence[Network] = ()) -> bool:
    """Whether a connection to this address may be made.

    An IPv6 address that carries an IPv4 one (mapped, NAT64, 6to4) is judged by that.

    Args:
        address: in text (a zone, `%eth0`, never counts as public) or parsed.
        allowed: networks that may be asked although they are not public.

    Raises:
        ValueError: the text is no address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = carried(ip)
        if inner is not None:
            return is_public(inner, allowed)
    if any(ip.version == network.version and ip in network for network in allowed):
        return True
    if isinstance(ip, ipaddress.IPv4Address):
        special = any(ip in network for network in SPECIAL_V4)
    else:
        special = ip not in UNICAST or ip.scope_id is not None or any(ip in network for network in SPECIAL)
    return ip.is_global and not (special or ip.is_multicast or ip.is_reserved)


def carried(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address inside a mapped, NAT64 or 6to4 address; None in any other."""
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip in NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.sixtofour


def literal(host: str) -> Address | None:
    """The address that a host is, when it is written as a number; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def refuse(url: URL, ports: Sequence[int], allowed: Sequence[Network]) -> tuple[str, str] | None:
    """Why a URL may not be asked, as (reason, detail): scheme, port, an address that is not public; None where it may.

    To be asked of the first URL and of every redirect.
    """
    if url.scheme not in ("http", "https") or not url.raw_host:
        return "scheme_forbidden", f"{url.scheme[:20] or 'no scheme'}, http or https expected"
    if url.port not in ports:
        return "port_forbidden", f"port {url.port}, allowed: {', '.join(map(str, ports))}"
    address = literal(url.raw_host)
    if address is not None and not is_public(address, allowed):
        return "not_public_address", str(address)
    return None


async def system_lookup(host: str) -> Sequence[str]:
    """Addresses of a name by the operating system's resolver."""
    loop = asyncio.get_running_loop()
    return [str(info[4][0]) for info in await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def target_of(host: str, connect_to: Mapping[str, str]) -> str | None:
    """The `address:port` that is asked instead of a host, where there is one."""
    return next((to for pattern, to in connect_to.items() if fnmatch.fnmatch(host, pattern)), None)


class GuardedResolver(AbstractResolver):
    """aiohttp's way to an address: the answers that were judged are the ones that it connects to.

    Args:
        allowed: networks that may be asked although they are not public.
        connect_to: host pattern (`*.example`) -> `address:port` to connect to instead, as curl's `--connect-to`;
            the URL and the Host header stay. The address is judged like any other.
        lookup: name -> addresses in text. What it answers is kept for five minutes; failures are not.
    """

    def __init__(
        self, allowed: Sequence[Network], connect_to: Mapping[str, str], lookup: Lookup = system_lookup
    ) -> None:
        self.allowed, self.connect_to, self.lookup = allowed, connect_to, lookup
        self._known: OrderedDict[str, tuple[float, Sequence[str]]] = OrderedDict()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Answers for a name.

        Raises:
            NoSuchHost: there is none.
            NotPublic: one of them is not public; then none of them is used.
        """
        target = target_of(host, self.connect_to)
        if target is not None:
            address, _, number = target.rpartition(":")
            addresses: Sequence[str] = [address.strip("[]")]
            port = int(number)
        else:
            addresses = await self._addresses(host)
        if not addresses:
            raise NoSuchHost(f"{host}: no address")
        for address in addresses:
            if not is_public(address, self.allowed):
                raise NotPublic(f"{host} has the address {address}")
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
        until, addresses = self._known.get(host, (0.0, ()))
        if until < time.monotonic():
            try:
                addresses = await self.lookup(host)
            except (OSError, UnicodeError) as error:
                raise NoSuchHost(f"{host}: {getattr(error, 'strerror', None) or error}") from error
            self._known[host] = time.monotonic() + NAME_SECONDS, addresses
        self._known.move_to_end(host)
        while len(self._known) > KNOWN_NAMES:
            self._known.popitem(last=False)
        return addresses

    async def close(self) -> None:
        """Nothing is held."""
