"""SSRF guard: no connection to a non-public address by number, name, redirect or DNS rebinding."""

import asyncio
import contextlib
import ipaddress
import socket
import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from tasks.download.fetch import Fetcher
from tasks.download.ledger import Fetched
from tasks.download.settings import DownloadSettings
from tasks.download.ssrf_guard import (
    METADATA,
    GuardedResolver,
    HostNotFoundError,
    NotPublicError,
    is_public,
    literal,
    refuse,
)
from tests.tasks.download.fetch_helpers import make_settings
from tests.tasks.web_server import running_site, sites_on_one_port

PRIVATE = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1
192.0.0.170 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1
240.0.0.1 255.255.255.255 168.63.129.16 169.254.170.2 100.100.100.200 192.0.0.192
fd00:ec2::254 fd20:ce::254 ::ffff:168.63.129.16 64:ff9b::168.63.129.16 2002:a83f:8110::
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::a00:1
64:ff9b:1::1 100::1 2001::1 2001:10::1 2001:db8::1 2002:7f00:1:: 2002:a00:1:: 2002:c0a8:101:: 3fff::1 5f00::1 fc00::1
fd12::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1 2606:4700::1%eth0
"""
PUBLIC = """
1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.17.0.1 198.20.0.1 223.255.255.255
2606:4700::1 2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::
"""
# Spellings of loopback, and of hosts that a lenient parser takes for it.
SPELLINGS = [
    *("127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0x7f.0.0.1", "0177.0.0.1"),
    *("017700000001", "127.000.000.001", "0", "0.0.0.0", "00000000", "localhost", "LOCALHOST.", "localhost."),
    *("127.0.0.1.", "2130706433.", "127.1.", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    *("[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[fe80::1%25lo]"),
    *("[::1%25lo]", "[::ffff:127.0.0.1%25lo]", "[0:0:0:0:0:0:0:1]", "①②⑦.0.0.1", "127。0。0。1", "１２７.0.0.1"),
    *("1２7.1", "%31%32%37.0.0.1", "127%2e0%2e0%2e1", "user:pass@127.0.0.1", "evil.com@127.0.0.1"),
    *("127.0.0.1:{port}#@evil.com", "ip6-localhost", "[2001:0:4136:e378:8000:63bf:807f:fffe]"),
    *("[::ffff:0:127.0.0.1]", "127.0.0.1%00.example.com", "127.0.0.1\\@example.com", "۱۲۷.0.0.1", "٠"),
    *("２１３０７０６４３３", "0۱77.0.0.1", "127.0.0.1,example.com", "[v1.a]", "017700000001."),
]
# Those that are numbers, and so need no resolver: a client may connect without asking one.
NUMERIC = [
    *("127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "0", "00"),
    *("127.000.000.001", "2130706433.", "127.1.", "1２7.1", "２１３０７０６４３３", "0x", "0X7F.1", "1.2.3.4.5"),
    *("127.0.0.0x1", "①②⑦.1", "127。1", "example.0x7f", "example.1", "4294967296", "1e3.1", "٢١٣٠.1", "127.0.0.08"),
    "256.1",
]


def test_only_public_addresses_are_allowed() -> None:
    assert [address for address in PRIVATE.split() if is_public(address)] == []
    assert [address for address in PUBLIC.split() if not is_public(address)] == []


@given(st.ip_addresses(v=4))
def test_an_embedded_ipv4_address_is_checked_itself(address: ipaddress.IPv4Address) -> None:
    six_to_four = str(ipaddress.IPv6Address(0x2002 << 112 | int(address) << 80))
    for embedding in (f"::ffff:{address}", f"64:ff9b::{address}", six_to_four):
        assert is_public(embedding) == is_public(address)
    if not address.is_global:
        assert not is_public(address)


def test_only_the_allowed_networks_are_excepted() -> None:
    allowed = [ipaddress.ip_network("127.0.0.0/8")]
    asked = ("127.0.0.1", "::ffff:127.0.0.1", "::1", "10.0.0.1")
    assert [is_public(address, allowed) for address in asked] == [True, True, False, False]


@pytest.mark.parametrize(
    ("reason", "urls"),
    [
        ("not_public_address", ["http://127.0.0.1/", "http://[::ffff:7f00:1]/", "https://10.0.0.1/"]),
        ("port_forbidden", ["http://8.8.8.8:22/"]),
        ("scheme_forbidden", ["ftp://8.8.8.8/", "file:///etc/passwd"]),
        (None, ["http://8.8.8.8/", "https://name.example/"]),
    ],
)
def test_urls_are_refused_with_their_reason(reason: str | None, urls: list[str]) -> None:
    for url in urls:
        verdict = refuse(URL(url), (80, 443), ())
        assert (verdict and verdict[0]) == reason, url


@pytest.mark.parametrize("host", NUMERIC)
def test_numeric_hosts_are_refused_before_a_client_sees_them(host: str) -> None:
    """By the guard alone, before the HTTP client or the C library interprets them."""
    try:
        url = URL(f"http://{host}/")
    except ValueError:
        return
    verdict = refuse(url, (80,), ())
    assert verdict and verdict[0] in ("malformed", "not_public_address"), verdict
    with pytest.raises(ValueError):
        literal(host)
    assert refuse(url, (80,), [ipaddress.ip_network("0.0.0.0/0")]), "nor where every address is allowed"


@given(st.lists(st.text("0123456789abcdefxX.０１٢②。", min_size=1, max_size=5), min_size=1, max_size=4))
def test_all_that_the_c_library_takes_for_an_address_is_checked(parts: list[str]) -> None:
    """`inet_aton` and the parsers of browsers are lenient; no host that they take is taken for a name here."""
    host = unicodedata.normalize("NFKC", ".".join(parts)).replace("\u3002", ".")
    try:
        packed = socket.inet_aton(host)
    except (OSError, UnicodeEncodeError):
        return
    with contextlib.suppress(ValueError):
        assert str(literal(host)) == socket.inet_ntoa(packed)


def test_metadata_services_are_refused_by_address_and_name() -> None:
    wide = [ipaddress.ip_network(text) for text in ("0.0.0.0/0", "::/0")]
    one = [ipaddress.ip_network("169.254.169.254/32")]
    for address in METADATA:
        assert not is_public(address) and not is_public(address, wide)
    assert is_public("169.254.169.254", one) and is_public("10.1.2.3", wide)
    for name in ("metadata.google.internal", "METADATA.google.internal.", "metadata"):
        assert refuse(URL(f"http://{name}/computeMetadata/v1/"), (80,), wide)
    assert refuse(URL("http://metadata.example/"), (80,), ()) is None


def test_invalid_host_names_are_refused() -> None:
    for host in ("a" * 64 + ".example", "a..b", "a b", "a,b", "a.example%00", "x" * 60 + ".y" * 100):
        with pytest.raises(ValueError):
            literal(host)


def test_no_spelling_reaches_an_internal_server() -> None:
    """In the list, and as the target of a redirect from an allowed host."""
    with running_site("127.0.0.1") as inside, running_site("127.0.0.2") as good:
        port = int(inside.address.rpartition(":")[2])
        urls = [f"http://{host.format(port=port)}" + ("" if "#" in host else f":{port}/x") for host in SPELLINGS]
        good.handlers["/to"] = lambda h: h.redirect(urls[int(h.path.partition("?")[2])].encode().decode("latin-1"))

        async def run() -> list[Fetched]:
            quick = {"per_host": 20, "attempts": 1, "max_host_failures": 1000, "obey_robots": False}
            settings = make_settings(ports=(80, port), allow_private=("127.0.0.2/32",), **quick)
            listed = [*urls, *(f"http://good.example/to?{number}" for number in range(len(urls)))]
            async with Fetcher(settings, {"good.example": good.address}) as fetcher:
                return await asyncio.gather(*(fetcher.fetch(url, "list") for url in listed))

        pages = asyncio.run(run())
        assert not inside.hits
        assert sum(good.hits.values()) == len(urls)
    reasons = [page.reason for page in pages]
    assert set(reasons) <= {"not_public_address", "malformed", "dns_failed", "redirect_loop"}
    assert not any(page.body for page in pages)
    assert reasons[: len(urls)].count("dns_failed") <= 8, "most are refused without a look-up"


def resolve(answers: Sequence[str], *hosts: str, asked: list[str], **connect_to: str) -> list[tuple[str, int]]:
    async def lookup(host: str) -> Sequence[str]:
        asked.append(host)
        return answers

    async def run() -> list[tuple[str, int]]:
        resolver = GuardedResolver((), {k.replace("_", "."): v for k, v in connect_to.items()}, lookup)
        found = [one for host in hosts for one in await resolver.resolve(host, 80)]
        return [(one["host"], one["port"]) for one in found]

    return asyncio.run(run())


def test_one_private_answer_refuses_the_host_and_answers_are_cached() -> None:
    asked: list[str] = []
    found = resolve(["8.8.8.8", "2606:4700::1"], "a.example", "a.example", "b.example", "a.example", asked=asked)
    assert found == [("8.8.8.8", 80), ("2606:4700::1", 80)] * 4 and asked == ["a.example", "b.example"]
    with pytest.raises(NotPublicError, match=r"name\.example has the address 10\.0\.0\.1"):
        resolve(["8.8.8.8", "10.0.0.1"], "name.example", asked=asked)
    with pytest.raises(HostNotFoundError):
        resolve([], "name.example", asked=asked)
    assert resolve([], "name.example", asked=asked, name_example="8.8.8.8:8080") == [("8.8.8.8", 8080)]
    with pytest.raises(NotPublicError):  # the setting `connect_to` is checked too
        resolve([], "name.example", asked=asked, name_example="127.0.0.1:8080")


def fetch_all(urls: list[str], port: str, *answers: str, allowed: Sequence[str] = ()) -> list[Fetched]:
    """Fetch one after the other; DNS answers come in this order, the last one repeatedly."""
    left = list(answers)

    async def answer(_: str) -> Sequence[str]:
        return [left.pop(0) if len(left) > 1 else left[0]]

    async def run() -> list[Fetched]:
        ports = (80, int(port))
        settings = DownloadSettings(delay=0, backoff=0, deadline=60, attempts=1, ports=ports, allow_private=allowed)
        async with Fetcher(settings, {}, answer) as fetcher:
            return [await fetcher.fetch(url, "list") for url in urls]

    return asyncio.run(run())


@pytest.mark.parametrize("order", [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
def test_dns_rebinding_is_prevented(order: list[str]) -> None:
    """Of two servers on one port only 127.0.0.2 is allowed; the connection goes to the address that was checked."""
    with sites_on_one_port("127.0.0.1", "127.0.0.2") as (inside, good):
        port = good.address.rpartition(":")[2]
        urls = [f"http://rebind.example:{port}/{n}" for n in range(3)]
        pages = fetch_all(urls, port, *order, allowed=("127.0.0.2/32",))
        allowed = order[0] == "127.0.0.2"
        assert not inside.hits and bool(good.hits) == allowed
    expected = ("", "127.0.0.2") if allowed else ("not_public_address", "")
    assert [(page.reason, page.ip or "") for page in pages] == [expected] * 3


def test_a_redirect_to_an_internal_name_is_refused() -> None:
    """DNS answers for the first name, then for the one that it redirects to."""
    with sites_on_one_port("127.0.0.1", "127.0.0.2") as (inside, good):
        port = good.address.rpartition(":")[2]
        good.handlers["/"] = lambda h: h.redirect(f"http://inside.example:{port}/")
        (page,) = fetch_all([f"http://out.example:{port}/"], port, "127.0.0.2", "127.0.0.1", allowed=("127.0.0.2/32",))
        assert page.reason == "not_public_address" and not inside.hits


def test_proxy_variables_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_site() as site:
        monkeypatch.setenv("http_proxy", f"http://{site.address}")
        monkeypatch.setenv("ALL_PROXY", f"http://{site.address}")
        (page,) = fetch_all(["http://name.example/"], site.address.rpartition(":")[2], "10.0.0.1")
        assert not site.hits
    assert page.reason == "not_public_address"
