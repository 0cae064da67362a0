"""Host names allowed in requests: protection against DNS rebinding and against pages of other sites.

If the host name of a web page resolves to 127.0.0.1, a browser treats the page as of the same origin as this server;
only the `Host` header (RFC 9110 7.2) shows the name.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

HOST = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/@\s]+)(?::[0-9]*)?")  # RFC 3986: IP literal or name, then the port
ANY = "*"


@dataclass(frozen=True)
class AllowedHosts:
    """Hosts that requests may name."""

    names: frozenset[str]  # names in lower case; `*` allows every host
    any_address: bool  # True to allow every IP address, False for loopback addresses and `names` only

    def allows_host(self, header: str) -> bool:
        """Return True if the `Host` header, `name[:port]`, names an allowed host; the port is ignored."""
        found = HOST.fullmatch(header.strip())
        return ANY in self.names or (found is not None and self._allows(found[1]))

    def allows_origin(self, header: str) -> bool:
        """Return True if the `Origin` header, `scheme://name[:port]`, names an allowed host."""
        try:
            origin = urlsplit(header.strip())
        except ValueError:
            return False
        return ANY in self.names or (origin.scheme in ("http", "https") and self.allows_host(origin.netloc))

    def _allows(self, host: str) -> bool:
        name = normal_name(host)
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


def allowed_hosts(bound: str, host: str, more: Sequence[str] = ()) -> AllowedHosts:
    """Return the hosts that requests may name: those of a listening IP address and host name, and `more`.

    If the address is not loopback, every IP address is allowed too: DNS rebinding needs a name, and the addresses that
    lead here (container networks, port forwards) cannot be known.
    """
    loopback = ipaddress.ip_address(bound.partition("%")[0]).is_loopback
    own = {"localhost", host, bound} | (set() if loopback else {socket.gethostname()})
    return AllowedHosts(frozenset(map(normal_name, [*own, *more])), any_address=not loopback)


def normal_name(host: str) -> str:
    """Return a host in lower case, without the brackets of an IPv6 address or the final dot of a full name."""
    return host.strip("[]").lower().removesuffix(".")
