"""Fetch of one page: reject reasons, recorded facts, attempts, request headers, and redirects to forgotten pages."""

import asyncio
import urllib.parse
from pathlib import Path

import pytest

import tasks.download.fetch as fetch_module
from gpt2train.store.manifest import Folder
from tasks.core.forgotten import FORGOTTEN, Forgotten, domain_hash, encode_forgotten, name_of, read_forgotten, url_hash
from tasks.download.fetch import Fetcher
from tasks.download.http_client import retry_after
from tasks.download.urls import join, parse
from tasks.outputs.forget.scan import scan
from tests.tasks.download.fetch_helpers import fetch, ledger_of, make_settings, run, run_again
from tests.tasks.web_server import PAGE, Handler, Site, ok, raw, running_site


@pytest.mark.parametrize(
    ("reason", "retryable", "status", "paths"),
    [
        ("", False, 200, "page heals hop1 gzip gzip-members gzip-tail deflate raw-deflate xhtml no-type"),
        ("", False, 200, "gzip-byte gzip-twice gzip-named-twice deflate-gzip"),
        ("not_found", False, 404, "gone"),
        ("http_error", False, 403, "forbidden"),
        ("http_error", True, 500, "broken"),
        ("http_error", True, 429, "later"),
        ("connection_failed", True, 200, "cut cut-chunk"),
        ("protocol_error", False, None, "nonsense long-header"),
        ("redirect_loop", False, 302, "loop1"),
        ("too_many_redirects", False, 302, "chain"),
        ("not_public_address", False, None, "inside"),
        ("scheme_forbidden", False, None, "file"),
        ("port_forbidden", False, None, "other-port"),
        ("robots_forbidden", False, None, "to-private private/x"),
        ("malformed", False, 302, "bad-target"),
        ("deadline", True, 200, "drip"),
        ("too_large", False, 200, "endless announced"),
        ("compression_ratio", False, 200, "bomb bomb-inside"),
        ("content_encoding", False, 200, "no-gzip brotli many-codings"),
        ("content_encoding", True, 200, "cut-gzip cut-inside"),
        ("content_type", False, 200, "image no-type-image no-type-text octets"),
    ],
)
def test_each_failure_has_its_reason(site: Site, reason: str, retryable: bool, status: int | None, paths: str) -> None:
    site.robots["a.test"] = (200, "User-agent: gpt2train\nDisallow: /private/")
    for path in paths.split():
        (page,) = fetch(site, [f"http://a.test/{path}"], **({"deadline": 1.0} if path == "drip" else {}))
        assert (page.reason, page.retryable, page.http_status) == (reason, retryable, status), page
        assert page.body == (None if reason else PAGE), page
        assert len(page.fetched_at) == 20


def test_facts_of_a_page_are_recorded(site: Site) -> None:
    """The last of several content types counts, unless the bytes are those of another."""
    twice = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Type: text/html;charset=koi8-r\r\n\r\n" + PAGE
    site.handlers |= {"/twice": lambda h: raw(h, twice), "/pdf": lambda h: h.answer(b"%PDF-1.4\n(Text) Tj")}
    names = ("me:secret@a.test/xhtml#part", "a.test/hop1", "a.test/twice", "a.test/pdf")
    page, hopped, *others = fetch(site, [f"http://{name}" for name in names])
    assert (page.url, page.final_url) == ("http://me:secret@a.test/xhtml#part", "http://a.test/xhtml")
    assert (page.content_type, page.charset, page.attempts) == ("application/xhtml+xml", "iso-8859-1", 1)
    assert (hopped.final_url, hopped.charset) == ("http://a.test/page", "utf-8")
    found = [(one.reason, one.content_type, one.charset) for one in others]
    assert found == [("", "text/html", "koi8-r"), ("content_type", "application/pdf", None)]
    assert others[1].detail == "sent as text/html, but the bytes are those of application/pdf"


LONG = b"<p>" + b"A page that is there to be read. " * 60


@pytest.mark.parametrize(
    ("path", "headers", "body", "found"),
    [
        ("latin", {"Location": "/caf\u00e9"}, b"", "/caf%E9"),
        ("signed", {"Location": "/foo%27%3A/b%2541?s=a%2Fb%2B&t=%7E"}, b"", "/foo%27%3A/b%2541?s=a%2Fb%2B&t=%7E"),
        ("zero", {}, b'<meta http-equiv="Refresh" content="0; url=/page?a=1&amp;b=2">' + LONG, "/page?a=1&b=2"),
        ("bare", {}, b"<META CONTENT=0;/page HTTP-EQUIV=refresh>", "/page"),
        ("quoted", {}, b"<meta http-equiv=refresh content=\"5;URL='page'\">Wait.", "/page"),
        (
            "base",
            {},
            b"<base target=_top><base href=/en/><base href=/x/><meta http-equiv=refresh content='0;p'>",
            "/en/p",
        ),
        ("late", {}, b"<meta http-equiv=refresh content='0;p'><base href=/en/>", "/p"),
        ("odd", {}, b"<base href='http://[zz/'><meta http-equiv=refresh content='0;p'>", "/p"),
        ("field", {"Refresh": "3; url=http://b.test/page"}, b"<p>Wait.", "http://b.test/page"),
        ("later", {"Refresh": "5; url=/page"}, LONG, None),
        ("daily", {"Refresh": "300; url=/page"}, b"<p>News.", None),
        ("self", {"Refresh": "0"}, b"<p>News.", None),
        ("script", {}, b"<script>'<meta http-equiv=refresh content=\"0;url=/gone\">'</script><p>Text.", None),
        ("noscript", {}, b"<noscript><meta http-equiv=refresh content='0;url=/gone'></noscript><p>Text.", None),
        ("nowhere", {"Refresh": "0; url=http://[zz/"}, b"<p>Text.", None),
    ],
)
def test_pages_that_send_elsewhere_are_followed(
    site: Site, path: str, headers: dict[str, str], body: bytes, found: str | None
) -> None:
    status = 302 if "Location" in headers else 200
    site.handlers = {"/" + path: lambda h: h.answer(body, status=status, **headers)}  # everything else is PAGE
    (page,) = fetch(site, [f"http://a.test/{path}"])
    assert (page.reason, page.body) == ("", body if found is None else PAGE)
    assert page.final_url == urllib.parse.urljoin("http://a.test", found or path)


@pytest.mark.parametrize(
    ("base", "location", "expected"),
    [
        ("/d%2541/page%27?q=1", "x%3A", "/d%2541/x%3A"),
        ("/d%2541/page%27?q=%27", "?z=%2F", "/d%2541/page%27?z=%2F"),
        ("/a%2Fb/c/d", "../e%20%zz", "/a%2Fb/e%20%25zz"),
        ("/a//b/c", "%2e%2e/\u00fc%C3", "/a//%C3%BC%C3"),
    ],
)
def test_escapes_stay_as_they_are_given(base: str, location: str, expected: str) -> None:
    start = parse(f"http://a.test{base}")
    assert (str(start), str(join(start, location))) == (f"http://a.test{base}", f"http://a.test{expected}")


def test_a_refresh_is_checked_like_a_redirect_and_followed_once(site: Site) -> None:
    for name, target in {"in": "http://169.254.169.254/", "r": "/private/x", "1": "/2", "2": "/3"}.items():
        site.handlers["/" + name] = lambda h, to=target: h.answer(b"<p>Wait.", Refresh=f"0;url={to}")
    site.robots["a.test"] = (200, "User-agent: *\nDisallow: /private/")
    pages = fetch(site, [f"http://a.test/{name}" for name in ("in", "r", "1")])
    assert [page.reason for page in pages] == ["not_public_address", "robots_forbidden", ""]
    assert [page.content_type for page in pages] == ["", "", "text/html"]
    assert pages[2].final_url == "http://a.test/2"


def test_cookies_are_kept_for_the_hops_of_one_page(site: Site) -> None:
    def gate(h: Handler) -> None:
        if h.headers["Cookie"] == "seen=1":
            return ok(h)
        h.answer(b"", status=302, Location=h.path, Set_Cookie="seen=1; Path=/")

    def other(h: Handler) -> None:
        h.answer(b"" if h.headers["Cookie"] else PAGE, status=500 if h.headers["Cookie"] else 200)

    def counter(h: Handler) -> None:
        h.answer(b"", status=302, Location=h.path, Set_Cookie=f"n={sum(h.site.hits.values())}")

    site.handlers |= {"/gate": gate, "/other": other, "/counter": counter}
    site.handlers["/away"] = lambda h: h.answer(b"", status=302, Location="http://b.test/other", Set_Cookie="seen=1")
    names = ("gate", "gate?again", "away", "counter")
    pages = fetch(site, [f"http://a.test/{name}" for name in names], per_host=1)
    assert [page.reason for page in pages] == ["", "", "", "too_many_redirects"]
    assert site.hits["a.test", "/gate"] == 4  # each page begins without cookies


def test_attempts_are_counted_and_capped(site: Site) -> None:
    for path, attempts in (("broken", 4), ("cut-chunk", 4), ("later", 1), ("nonsense", 1), ("long-header", 1)):
        (page,) = fetch(site, [f"http://a.test/{path}"], attempts=4)
        assert (page.attempts, site.hits["a.test", f"/{path}"]) == (attempts, attempts), path


def test_an_unexpected_error_rejects_one_page_only(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parse_content_type = fetch_module.parse_content_type

    def broken(*values: str | None) -> tuple[str, str | None]:
        if "xhtml" in str(values).lower():
            raise RuntimeError("not thought of")
        return parse_content_type(*values)

    monkeypatch.setattr(fetch_module, "parse_content_type", broken)
    with caplog.at_level("WARNING", logger="gpt2train"):
        pages = fetch(site, ["http://a.test/xhtml", "http://a.test/page", "http://b.test/xhtml"])
    assert [page.reason for page in pages] == ["client_error", "", "client_error"]
    assert pages[0].detail == "RuntimeError: not thought of" and not pages[0].retryable
    (line,) = caplog.records  # the first of its kind, with its traceback
    assert "RuntimeError" in line.getMessage() and line.exc_info


def test_the_backoff_grows_between_attempts(site: Site) -> None:
    """Exponential, with jitter: 0.5 to 1.5 times 0.1 s, then twice that; or as Retry-After says."""
    (page,) = fetch(site, ["http://a.test/broken"], obey_robots=False, backoff=0.1)
    first, second, third = [at for _, at in site.starts]
    assert (page.reason, page.attempts) == ("http_error", 3)
    assert second - first > 0.05 and third - second > 0.1
    assert [retry_after(value) for value in ("7", "Mon, 01 Jan 2001 00:00:00 GMT")] == [7.0, 0.0]
    for value in ("soon", "9" * 5000, "Mon, 01 Jan 99999999999 00:00:00 GMT", None):
        assert retry_after(value) is None, value
    assert retry_after("Mon, 01 Jan 0001 00:00:00 +2359") in (None, 0.0)


def test_unreachable_hosts_have_their_reasons(site: Site) -> None:
    async def run() -> list[str]:
        connect_to = {"closed.test": "127.0.0.1:1"}
        async with Fetcher(make_settings(), connect_to) as fetcher:
            urls = ["http://closed.test/", "http://nosuchhost.invalid/", "http://a.test:99999/"]
            return [(await fetcher.fetch(url, "list")).reason for url in urls]

    assert asyncio.run(run()) == ["connection_failed", "dns_failed", "malformed"]


def test_urls_in_every_spelling_are_fetched_with_the_expected_headers(site: Site) -> None:
    port = site.address.rpartition(":")[2]
    urls = ["http://b\u00fccher.test/p\u00e4ge?q=\u00e4", f"http://127.0.0.1:{port}/page"]
    pages = fetch(site, urls, ports=(80, int(port)))
    assert [page.reason for page in pages] == ["", ""]
    assert pages[0].final_url == "http://xn--bcher-kva.test/p%C3%A4ge?q=%C3%A4"
    assert site.hits["xn--bcher-kva.test", "/p%C3%A4ge"] == 1
    assert site.hits[f"127.0.0.1:{port}", "/page"] == 1
    assert {page.ip for page in pages} == {"127.0.0.1"}
    seen: list[dict[str, str]] = []
    site.handlers["/look"] = lambda h: (seen.append(dict(h.headers)), ok(h))[1]
    fetch(site, ["http://me:secret@a.test/look"])
    (headers,) = seen
    assert headers["Accept-Encoding"] == "gzip, deflate"  # what is decoded within bounds, and no brotli
    assert headers["User-Agent"].startswith("gpt2train/")
    assert not {"Authorization", "Cookie"} & set(headers)


def test_an_ipv6_address_is_fetched() -> None:
    try:
        with running_site("::1") as site:
            port = site.address.rpartition(":")[2]
            settings = {"ports": (int(port),), "allow_private": ("::1/128",)}
            (page, refused) = fetch(site, [f"http://[::1]:{port}/page", f"http://[::1]:{int(port) + 1}/"], **settings)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    assert (page.reason, page.ip) == ("", "::1")
    assert refused.reason == "port_forbidden"


TARGET = "http://a.test/secret"
LISTED = Forgotten(urls=(url_hash(TARGET),), domains=(domain_hash("gone.test"),))


@pytest.fixture
def redirecting(site: Site) -> Site:
    site.handlers["/secret"] = lambda h: h.answer(b"<p>secret")
    site.handlers["/to-page"] = lambda h: h.redirect(TARGET + "?#part")
    site.handlers["/to-domain"] = lambda h: h.redirect("http://www.gone.test/1")
    site.handlers["/to-hop"] = lambda h: h.redirect("http://b.test/to-page")
    return site


@pytest.mark.parametrize("consent", [False, True])
def test_a_redirect_to_a_forgotten_page_is_refused(redirecting: Site, tmp_path: Path, consent: bool) -> None:
    root = Folder(tmp_path)
    (tmp_path / FORGOTTEN).write_bytes(encode_forgotten(LISTED))
    shards = [["http://b.test/to-page", "http://b.test/to-domain", "http://c.test/to-hop", "http://a.test/2"]]
    manifest = run(root, redirecting, shards, consent={"enabled": consent})
    asked = {(host, path) for (host, path), count in redirecting.hits.items() if count}
    assert not [path for path in asked if path[1].startswith("/secret")]
    assert not [host for host, _ in asked if host.endswith("gone.test")]  # not even for robots.txt
    assert manifest.outcome.reasons == {"forgotten": 3} and manifest.outcome.kept == 1
    ledger = ledger_of(root, manifest)
    assert [row["url"] for row in ledger[:3]] == [name_of(TARGET), name_of("http://www.gone.test/1"), name_of(TARGET)]
    assert not any(row["final_url"] or row["detail"] or row["http_status"] for row in ledger[:3])
    assert scan(root, LISTED, LISTED, ["secret " * 9], ()).traces == []


def test_a_page_that_is_moved_to_a_forgotten_one_is_gone(redirecting: Site, tmp_path: Path) -> None:
    """A page that was fetched before the removal of another, and redirects to it at the refresh."""
    root, moved = Folder(tmp_path), "http://b.test/moved"
    redirecting.handlers["/moved"] = lambda h: h.answer(b"<p>here")
    assert run(root, redirecting, [[moved, "http://a.test/2"]]).outcome.kept == 2
    (tmp_path / FORGOTTEN).write_bytes(encode_forgotten(LISTED))
    redirecting.handlers["/moved"] = redirecting.handlers["/to-page"]
    manifest = run_again(root, redirecting.address, refresh=True)
    assert redirecting.hits["a.test", "/secret"] == 0 and manifest.outcome.reasons == {"forgotten": 1}
    assert read_forgotten(root) == LISTED and scan(root, LISTED, LISTED, ["secret " * 9], ()).traces == []
