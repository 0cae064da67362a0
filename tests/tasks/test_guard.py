"""No connection to an address that is not public: by number, by name, by redirect, by a second look-up."""

import asyncio
import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from tasks.download import DownloadSettings
from tasks.download.fetch import Fetched, Fetcher
from tasks.download.guard import GuardedResolver, NoSuchHost, NotPublic, is_public, refuse, system_lookup
from tests.tasks.site import running_site

PRIVATE = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1
192.0.0.170 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1
240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::a00:1
64:ff9b:1::1 100::1 2001::1 2001:10::1 2001:db8::1 2002:7f00:1:: 2002:a00:1:: 2002:c0a8:101:: 3fff::1 5f00::1 fc00::1
fd12::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1 2606:4700::1%eth0
"""
PUBLIC = """
1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.17.0.1 198.20.0.1 223.255.255.255
2606:4700::1 2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::
"""
NUMBERS = "http://2130706433/ http://0x7f000001/ http://0177.0.0.1/ http://127.1/ http://127.0.0.1./ http://[::1]/"


@pytest.mark.parametrize("address", PRIVATE.split())
def test_private(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_in_a_coat_is_judged_by_itself(address: ipaddress.IPv4Address) -> None:
    for coat in (
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        str(ipaddress.IPv6Address(0x2002 << 112 | int(address) << 80)),
    ):
        assert is_public(coat) == is_public(address)
    if not address.is_global:
        assert not is_public(address)


def test_what_is_allowed_and_no_more() -> None:
    allowed = [ipaddress.ip_network("127.0.0.0/8")]
    assert is_public("127.0.0.1", allowed)
    assert is_public("::ffff:127.0.0.1", allowed)
    assert not is_public("::1", allowed)
    assert not is_public("10.0.0.1", allowed)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1/", "not_public_address"),
        ("http://[::ffff:7f00:1]/", "not_public_address"),
        ("https://10.0.0.1/", "not_public_address"),
        ("http://8.8.8.8:22/", "port_forbidden"),
        ("ftp://8.8.8.8/", "scheme_forbidden"),
        ("file:///etc/passwd", "scheme_forbidden"),
        ("http://8.8.8.8/", None),
        ("https://name.example/", None),
    ],
)
def test_urls(url: str, reason: str | None) -> None:
    verdict = refuse(URL(url), (80, 443), ())
    assert (verdict and verdict[0]) == reason


def resolve(answers: Sequence[str], host: str = "name.example", **connect_to: str) -> list[tuple[str, int]]:
    async def lookup(_: str) -> Sequence[str]:
        return answers

    async def run() -> list[tuple[str, int]]:
        resolver = GuardedResolver((), {k.replace("_", "."): v for k, v in connect_to.items()}, lookup)
        return [(answer["host"], answer["port"]) for answer in await resolver.resolve(host, 80)]

    return asyncio.run(run())


def test_one_private_answer_spoils_all() -> None:
    assert resolve(["8.8.8.8", "2606:4700::1"]) == [("8.8.8.8", 80), ("2606:4700::1", 80)]
    with pytest.raises(NotPublic, match=r"name\.example has the address 10\.0\.0\.1"):
        resolve(["8.8.8.8", "10.0.0.1"])
    with pytest.raises(NoSuchHost):
        resolve([])


def test_connect_to_is_judged_too() -> None:
    assert resolve([], name_example="8.8.8.8:8080") == [("8.8.8.8", 8080)]
    with pytest.raises(NotPublic):
        resolve([], name_example="127.0.0.1:8080")


def fetch_all(
    urls: Sequence[str], port: str, lookup: Sequence[Sequence[str]] = (), allowed: Sequence[str] = ()
) -> list[Fetched]:
    """Fetch one after the other; look-ups answer in turn, the last one for ever."""
    answers = list(lookup)

    async def answer(_: str) -> Sequence[str]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def run() -> list[Fetched]:
        settings = DownloadSettings(
            delay=0, backoff=0, deadline=2, attempts=1, ports=(80, int(port)), allow_private=tuple(allowed)
        )
        async with Fetcher(settings, {}, answer if answers else system_lookup) as fetcher:
            return [await fetcher.fetch(url, "list") for url in urls]

    return asyncio.run(run())


def test_no_request_reaches_the_server_inside() -> None:
    """Every way to write loopback, with a server listening there: none of them gets through."""
    with running_site() as site:
        port = site.address.rpartition(":")[2]
        urls = [
            url[:-1] + f":{port}/"
            for url in (*NUMBERS.split(), "http://127.0.0.1/", "http://localhost/", "http://LOCALHOST./")
        ]
        pages = fetch_all(urls, port)
        assert not site.hits
    for page in pages:
        assert page.body is None
        assert page.reason in ("not_public_address", "malformed", "dns_failed"), page
    assert [page.reason for page in pages].count("not_public_address") >= 4


@pytest.mark.parametrize("turns", [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
def test_a_name_server_that_changes_its_mind(turns: list[str]) -> None:
    """Rebinding: an address that may be asked first, one that may not next, or the other way about.

    Both are loopback, and servers listen at both on one port; only 127.0.0.2 is allowed. Each look-up is judged, and
    the connection goes to what was judged: the server at 127.0.0.1 never sees a request.
    """
    with running_site("127.0.0.2") as good:
        port = good.address.rpartition(":")[2]
        with running_site("127.0.0.1", int(port)) as inside:
            urls = [f"http://rebind.example:{port}/{n}" for n in range(3)]
            pages = fetch_all(urls, port, [[turn] for turn in turns], ["127.0.0.2/32"])
            assert not inside.hits
            if turns[0] == "127.0.0.2":
                assert [page.reason for page in pages] == ["", "", ""]
                assert {page.ip for page in pages} == {"127.0.0.2"}
            else:
                assert {page.reason for page in pages} == {"not_public_address"}
                assert not good.hits


def test_a_redirect_to_a_name_that_points_inside() -> None:
    with running_site("127.0.0.2") as good:
        port = good.address.rpartition(":")[2]
        with running_site("127.0.0.1", int(port)) as inside:
            good.handlers["/"] = lambda h: h.redirect(f"http://inside.example:{port}/")
            # Look-ups in turn: the first name, then the name that it redirects to.
            (page,) = fetch_all([f"http://out.example:{port}/"], port, [["127.0.0.2"], ["127.0.0.1"]], ["127.0.0.2/32"])
            assert not inside.hits
    assert page.reason == "not_public_address"


def test_answers_are_kept_for_a_while() -> None:
    asked: list[str] = []

    async def lookup(host: str) -> Sequence[str]:
        asked.append(host)
        return ["8.8.8.8"]

    async def run() -> None:
        resolver = GuardedResolver((), {}, lookup)
        for host in ("a.example", "a.example", "b.example", "a.example"):
            await resolver.resolve(host, 80)

    asyncio.run(run())
    assert asked == ["a.example", "b.example"]


def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_site() as site:
        monkeypatch.setenv("http_proxy", f"http://{site.address}")
        monkeypatch.setenv("ALL_PROXY", f"http://{site.address}")
        (page,) = fetch_all(["http://name.example/"], site.address.rpartition(":")[2], [["10.0.0.1"]])
        assert not site.hits
    assert page.reason == "not_public_address"
