"""Headers and robots.txt: malformed ones of hostile servers, and lifetimes by RFC 9111, 4.2."""

import asyncio
import contextlib
import dataclasses
import datetime
import gzip
import hashlib
import itertools
import random
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from warcio.archiveiterator import ArchiveIterator
from yarl import URL

from gpt2train.store.manifest import Folder, Outcome
from tasks.core.step import Step
from tasks.download.fetch import Fetcher
from tasks.download.freshness import MAX_DAYS, fresh_until, is_fresh
from tasks.download.http_client import retry_after
from tasks.download.ledger import Fetched
from tasks.download.mime import parse_content_type, sniff_html, type_of
from tasks.download.response_body import Decoder, FetchRejectedError
from tasks.download.robots import MAX_AGENTS, RobotsRules
from tasks.download.ssrf_guard import refuse
from tasks.download.urls import join, parse, refresh_target
from tasks.download.warc import encode_head, encode_record
from tasks.extract.step import ExtractSettings, extract
from tasks.sources.index import read_pages
from tests.tasks.corpus import Inline, rejected_of
from tests.tasks.download.fetch_helpers import fetch, make_settings
from tests.tasks.warc_pages import make_page, write_pages
from tests.tasks.web_server import Site

words = str.split
SIGNS = ["", " ", "\t", "\r", "\n", "\r\n", "\0", "\x85", "\u2028", "é", "\udc80", "ÿ", "%00", "%0d%0a", "%zz"]
BITS = {
    "Content-Type": [
        *words("text/html text / html ; charset charset= charset* charset*0 charset*0* = utf-8 '' ' % =?utf-8?q?x?= *"),
        *words('" \\ "a boundary= , ( punycode idna base64 rot13 undefined unicode_escape utf-7 utf_16'),
        *("1" * 30, "9" * 4400, "x" * 100),
    ],
    "Retry-After": [
        *words("Mon Mon, 01 Jan 2026 99999999999 00:00:00 25:61:61 GMT +9999 -9999 (c) +99999999 - . 0 ١ 24 1e9 nan"),
        *words("inf : Feb 30 0000 00 -0001 EST5EDT UTC-25 +2500 +0000 +-12 9999 0001 +2359 -2359 Dec"),
        *("1" * 60, "1" * 4400, '"'),
    ],
    "Location": [
        *words("http:// https:// // / ? # [ ] @ : ::1 % \\ .. /.. a ﷺ xn-- xn--a . 。 0 99999 65536 -1 +80 ftp:"),
        *words("javascript: user:pw@ 127.1 ß \u200d \u0130 | < ^ ` { } = & * !"),
        *("1" * 30, "a" * 70, "a" * 300, '"'),
    ],
    "robots.txt": [
        *("User-agent: *\n", "user agent gpt2train\n", "Disallow: ", "Allow: ", "Crawl-delay: ", "Request-rate: "),
        *("Visit-time: ", "Sitemap: ", "Host: ", "\n", "\ufeff", "9" * 4400, "a" * 200),
        *words("/ * $ %c3 nan inf 1e999 -1 1/ 0900- # ; ? :"),
    ],
}
BITS["Content-Encoding"] = ["gzip", "x-gzip", "deflate", "identity", "br", "zstd", ",", ";q=1", "chunked", "9" * 5000]
BITS["Content-Language"] = BITS["Set-Cookie"] = BITS["Link"] = BITS["Content-Type"]


def spellings(kind: str, rng: random.Random) -> str:
    """A random header of tokens that its parser knows and of characters that no header should have."""
    bits = BITS[kind] + ([*SIGNS, chr(rng.randrange(0x110000))] if rng.random() < 0.5 else SIGNS[:3])
    between = rng.choice(["", "", " "])
    words = between.join(rng.choice(bits) for _ in range(rng.randint(1, 8)))
    return {"Content-Type": rng.choice(["", "text/html;", "text/html; charset="])}.get(kind, "") + words


def location(value: str) -> bool:
    """Take a redirect as the fetcher does; False for one that passes without a plain ASCII address."""
    sound = True
    with contextlib.suppress(FetchRejectedError):
        url = join(URL("http://a.example/x/y?z"), value)
        if refuse(url, (80, 443), ()) is None:
            sound = str(url).isascii() and str(url.origin() / "robots.txt").endswith("/robots.txt")
    with contextlib.suppress(FetchRejectedError):
        parse(value)
    return sound


def content_type(value: str) -> bool:
    kind, charset = parse_content_type(value)
    found = kind + (charset or "")
    return found.isascii() and found.isprintable() and not {"\r", "\n", " ", ";"} & set(found)


def seconds(value: str) -> bool:
    found = retry_after(value)
    return found is None or found >= 0


def encoding(value: str) -> bool:
    """Decompress an invalid body; False for more than one byte beyond the limit."""
    with contextlib.suppress(FetchRejectedError):
        return len(Decoder(value).feed(b"\x1f\x8b\x08 no gzip", 100)) <= 101
    return True


def robots(value: str) -> bool:
    with contextlib.suppress(FetchRejectedError):
        rules = RobotsRules(value.encode("utf-8", "surrogateescape").decode("utf-8-sig", "replace"))
        return isinstance(asyncio.run(rules.allows("http://a.example/x%zz?*$", "gpt2train")), bool) and (
            rules.delay("gpt2train") >= 0
        )
    return True


# Each returns False for a value that is parsed to something invalid, and raises nothing.
PARSERS: dict[str, Callable[[str], bool]] = {
    "Content-Type": content_type,
    "Retry-After": seconds,
    "Location": location,
    "Content-Encoding": encoding,
    "robots.txt": robots,
}


@pytest.mark.parametrize("count", [1500, pytest.param(35_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", PARSERS)
def test_any_header_is_parsed_without_an_exception(kind: str, count: int) -> None:
    rng = random.Random(f"{kind} {count}")
    for value in (spellings(kind, rng) for _ in range(count // (10 if kind == "robots.txt" else 1))):
        assert PARSERS[kind](value), value


@given(st.binary(max_size=300))
def test_any_body_is_sniffed_without_an_exception(body: bytes) -> None:
    assert sniff_html(body) in ("", "text/html", "application/xhtml+xml")


def test_media_types_equal_those_of_the_standard_library() -> None:
    for value in (
        *("text/html", "TEXT/HTML; Charset=UTF-8", "text/html;charset=x-sjis", "application/xhtml+xml; q=1"),
        *('text/html; a="b;c"; charset="iso-8859-1"', "text/html ; charset=utf-8 ; x=y"),
    ):
        message = Message()
        message["Content-Type"] = value
        assert parse_content_type(value) == (message.get_content_type(), message.get_content_charset()), value


@pytest.mark.parametrize(
    ("kind", "charset", "values"),
    [
        ("text/html", None, ["text/html; charset*=utf-8''x%0d%0a%0d%0aZZZ", "text/html;charset*;charset*0"]),
        ("text/html", None, ["text/html; charset=\r\n\r\nZZZ", 'text/html; charset="x\r\ny"', "text/html, text/html"]),
        ("text/html", None, ['text/html;charset="a,b";x="\\",", */*', "text/html; charset=" + "x" * 65]),
        ("text/html", "a", ["text/html; charset=a;charset=b"]),
        ("text/html", "gbk", ["text/html;charset=gbk, text/html"]),
        ("text/plain", None, ["text/html;charset=gbk, text/plain"]),
        ("", "utf-8", ["; charset=utf-8"]),
        ("", None, ["text/html charset=utf-8", "nonsense", "", None]),
    ],
)
def test_malformed_media_types_are_parsed(kind: str, charset: str | None, values: list[str | None]) -> None:
    for value in values:
        assert parse_content_type(value) == (kind, charset), value


def test_parsing_time_is_proportional_to_the_length() -> None:
    """CPU time of 16 times the length, for headers made of what a parser has to search for."""
    html = "text/html"
    pieces = ((html, ";"), (html, ";a"), (html + ";", " "), (html + ';charset="', "\\"), (html, ';a="'))
    for head, piece in (*pieces, (html + ";charset=x", '"')):
        times = []
        for count in (4_000, 64_000):
            began = time.process_time()
            for _ in range(3):
                parse_content_type(head + piece * count)
            times.append(time.process_time() - began)
        assert times[1] < 0.1 + 100 * times[0], (piece, times)  # a square would be 256 times


@pytest.mark.parametrize(
    ("kind", "bodies"),
    [
        ("text/html", [b"<!DOCTYPE html><p>x", b"\n\t <HTML lang=en>", b"<!-- a note --><html>", b"<p>x"]),
        ("text/html", [b"\xef\xbb\xbf<html>", *("\ufeff<!doctype html>".encode(f"utf-16-{end}e") for end in "lb")]),
        ("application/xhtml+xml", [b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">\n<html>']),
        ("", [b'<?xml version="1.0"?><rss></rss>', b"plain words", b"<pre>x", b"<path d=''/>", b"%PDF-1.7 <html>"]),
        ("", [b"\x89PNG\r\n\x1a\n<html>", b"<html>\0\1\2\3", b"\x1f\x8b\x08<html>", b""]),
    ],
)
def test_pages_without_a_content_type_are_sniffed(kind: str, bodies: list[bytes]) -> None:
    for body in bodies:
        assert sniff_html(body) == kind, body


@pytest.mark.parametrize(
    ("kind", "bodies"),
    [
        ("application/pdf", [b"%PDF-1.4\n1 0 obj (Text) Tj"]),
        ("application/zip", [b"PK\x03\x04word/document.xml"]),
        ("application/rtf", [b"{\\rtf1\\ansi Text}"]),
        ("image/*", [b"RIFF\x00\x01\x02\x03WEBPVP8 "]),
        ("video/*", [b"\x00\x00\x00\x18ftypmp42"]),
        ("application/json", [b'\xef\xbb\xbf {"title": "A", "body": "<p>text</p>"}\n', b'[{"a": 1}]']),
        ("application/rss+xml", [b'<?xml version="1.0"?>\n<!-- a --><rss version="2.0"><channel>']),
        ("application/atom+xml", [b'<feed xmlns="http://www.w3.org/2005/Atom">']),
        ("", [b"[Home] <p>Text</p> [end]", b"{{ template }} <p>Text {}</p> }", b"<!DOCTYPE html><p><rss>"]),
        ("", [b"<!---->" * 200, b'<?xml version="1.0"?><html>', b"plain words about %PDF-1.4", b""]),
        ("", [b"MZ is how the text begins, and it goes on.", b"BM is how the text begins, and it goes on."]),
    ],
)
def test_other_files_that_are_sent_as_html_are_known(kind: str, bodies: list[bytes]) -> None:
    for body in bodies:
        assert type_of("text/html", body) == (kind or "text/html"), body
        assert type_of("text/plain", body) == "text/plain", body


@pytest.mark.parametrize("piece", [b"<", b"<script", b"<!--", b"<meta ", b'<meta a="', b"\x20", b"a='"])
def test_a_refresh_is_looked_for_in_linear_time(piece: bytes) -> None:
    """CPU time; a quadratic search took minutes for a page of `<` alone, in the event loop of the crawl."""
    began = time.process_time()
    refresh_target(URL("http://a.example"), "5; url=/x", piece * (2**21 // len(piece)))
    assert time.process_time() - began < 2


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
HI = b"Content-Length: 2\r\n\r\nhi"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def typed(value: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: " + value + b"\r\n" + HI


def moved(location: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"


def busy(retry_after: bytes) -> bytes:
    return b"HTTP/1.1 503 No\r\nRetry-After: " + retry_after + b"\r\nContent-Length: 0\r\n\r\n"


def forever(head: bytes, piece: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.chain([head], itertools.repeat(piece))


KEPT = ("",)
PROTOCOL = ("protocol_error",)
NOWHERE = ("malformed", "dns_failed", "not_public_address")
# Name -> (what is sent, the reasons that are right for it).
ANSWERS: dict[str, tuple[bytes | Callable[[], Iterator[bytes]], tuple[str, ...]]] = {
    "type: continued charset": (typed(b"text/html;charset*;charset*0"), KEPT),
    "type: charset of bytes": (typed(b"text/html; charset=\xc3\xa9\x80"), KEPT),
    "type: number of 4,400 digits": (typed(b"text/html; charset*" + b"1" * 4400 + b"=x"), KEPT),
    "type: NUL in the charset's charset": (typed(b"text/html; charset*=%00''x"), KEPT),
    "type: line ends in the charset": (typed(b"text/html; charset*=utf-8''x%0d%0a%0d%0aZZZ"), KEPT),
    "retry-after: year 99999999999": (busy(b"Mon, 01 Jan 99999999999 00:00:00 GMT"), ("http_error",)),
    "retry-after: 5,000 digits": (busy(b"9" * 5000), ("http_error",)),
    "length: 5,000 digits": (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nhi", PROTOCOL),
    "length: negative": (OK + b"Content-Length: -5\r\n\r\nhi", PROTOCOL),
    "length: two of them": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", PROTOCOL),
    "length: hexadecimal": (OK + b"Content-Length: 0x2\r\n\r\nhi", PROTOCOL),
    "status 99": (b"HTTP/1.1 99 OK\r\nContent-Type: text/html\r\n\r\nhi", PROTOCOL),
    "status 1000": (b"HTTP/1.1 1000 OK\r\nContent-Type: text/html\r\n\r\nhi", PROTOCOL),
    "status 101": (b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi", ("http_error",)),
    "HTTP/0.9": (b"hello", PROTOCOL),
    "encoding: brotli": (OK + b"Content-Encoding: br\r\n" + HI, ("content_encoding",)),
    "encoding: gzip twice": (OK + b"Content-Encoding: gzip, gzip\r\n" + HI, ("content_encoding",)),
    "encoding: bytes": (OK + b"Content-Encoding: \xff\xfe\r\n" + HI, ("",)),
    "encoding: none": (OK + b"Content-Encoding: none\r\n" + HI, ("",)),
    "encoding: a charset": (OK + b"Content-Encoding: UTF-8, identity\r\n" + HI, ("",)),
    "location: empty": (moved(b""), ("redirect_loop",)),
    "location: bytes": (moved(b"http://\xff\xfe.example/"), NOWHERE),
    "location: port 99999": (moved(b"http://a:99999/"), ("malformed",)),
    "location: international": (moved("http://a\u0301.\u0130stanbul.example/".encode()), NOWHERE),
    "location: label of 200": (moved(b"http://" + b"a" * 200 + b".example/"), ("malformed",)),
    "location: empty label": (moved(b"http://a..b/"), ("malformed",)),
    "location: file": (moved(b"file:///etc/passwd"), ("scheme_forbidden",)),
    "location: gopher": (moved(b"gopher://127.0.0.1:25/x"), ("scheme_forbidden",)),
    "location: web socket": (moved(b"ws://127.0.0.1/x"), ("scheme_forbidden",)),
    "location: metadata": (moved(b"http://169.254.169.254/latest/meta-data/"), ("not_public_address",)),
    "location: NAT64": (moved(b"http://[64:ff9b::a9fe:a9fe]/"), ("not_public_address",)),
    "location: half an IPv6": (moved(b"http://[::1"), ("malformed",)),
    "location: NUL": (moved(b"http://a.example/%00\xc2\x85"), NOWHERE),
    "chunk: negative": (CHUNKED + b"-5\r\nhi\r\n0\r\n\r\n", PROTOCOL),
    "chunk: huge": (CHUNKED + b"ffffffffffffffffff\r\nhi\r\n0\r\n\r\n", PROTOCOL),
    "cookie: bytes and a date": (OK + b"Set-Cookie: \xff=\xfe; expires=Mon, 99999999999\r\n" + HI, KEPT),
    "cookie: quoted": (OK + b'Set-Cookie: a="\\777\\' + b"x" * 3000 + b"\r\n" + HI, KEPT),
    "language: bytes": (OK + b"Content-Language: \xff\r\n" + HI, KEPT),
    "link: broken": (OK + b"Link: <http://[>; rel=\xff\r\n" + HI, KEPT),
    "endless: headers": (forever(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"v" * 4000 + b"\r\n"), PROTOCOL),
    "endless: header": (forever(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536), PROTOCOL),
    "endless: trailers": (forever(CHUNKED + b"2\r\nhi\r\n0\r\n", b"X: " + b"v" * 4000 + b"\r\n"), PROTOCOL),
    "endless: early hints": (forever(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 100), ("deadline",)),
    "endless: chunk extension": (forever(CHUNKED + b"2;", b"a" * 65536), ("deadline",)),
}


@contextlib.contextmanager
def answering() -> Iterator[str]:
    """Serve `ANSWERS` at 127.0.0.1; the first label of the asked host, `c7`, is the number of the answer."""
    sent = [answer for answer, _ in ANSWERS.values()]

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = connection.recv(65536)
            number = int(head.lower().partition(b"\nhost: c")[2].partition(b".")[0])
            what = sent[number]
            for piece in [what] if isinstance(what, bytes) else what():
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_each_malformed_response_ends_with_a_reason() -> None:
    async def run(address: str, numbers: list[int], deadline: float) -> list[Fetched]:
        settings = make_settings(obey_robots=False, attempts=3, deadline=deadline, max_wait=0, max_host_failures=1000)
        async with Fetcher(settings, {"c*": address}) as fetcher:
            return await asyncio.gather(*(fetcher.fetch(f"http://c{n}.example/", "list") for n in numbers))

    answers = list(ANSWERS.items())
    endless = [number for number, (_, (_, reasons)) in enumerate(answers) if reasons == ("deadline",)]
    others = [number for number in range(len(answers)) if number not in endless]
    with answering() as address:
        pages = asyncio.run(run(address, others, 60.0)) + asyncio.run(run(address, endless, 2.0))
    for page, (name, (_, reasons)) in zip(pages, [answers[n] for n in others + endless], strict=True):
        assert page.reason in reasons, (name, page)
        assert page.body == (None if page.reason else b"hi"), name
        if reasons == ("protocol_error",):
            assert (page.attempts, page.retryable) == (1, False), name


FIELDS = ("url", "final_url", "charset", "source", "fetched_at", "ip", "content_language")
ENDS = st.sampled_from(["\r\n", "\r\n\r\nZZZ", "\r\nContent-Encoding: gzip", "\r\nContent-Length: 0", "\n\n", "\0"])


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), st.text(max_size=40) | ENDS, max_size=4), max_size=3), ENDS)
def test_no_header_value_changes_a_body_in_the_archive(
    tmp_path_factory: pytest.TempPathFactory, changes: list[dict[str, str]], name: str
) -> None:
    folder = tmp_path_factory.mktemp("warc")
    pages = [make_page(**change) for change in changes]
    pages = [dataclasses.replace(page, final_url=f"http://a.example/{page.final_url}") for page in pages]
    write_pages(folder / "p.warc.gz", pages)
    data = (folder / "p.warc.gz").read_bytes()
    (folder / "p.warc.gz").write_bytes(encode_head(name, name) + data)
    found = list(read_pages(Folder(folder), "p.warc.gz"))
    assert [(page.body, page.sha256, page.fault) for page in found] == [(page.body, page.sha256, "") for page in pages]
    with (folder / "p.warc.gz").open("rb") as file:
        bodies = [r.content_stream().read() for r in ArchiveIterator(file, check_digests="raise") if r.http_headers]
    assert bodies == [page.body for page in pages]


def test_an_invalid_content_type_is_left_out(tmp_path: Path) -> None:
    """The type is one of the settings' own; an invalid one is left out, and the body decides."""
    write_pages(tmp_path / "p.warc.gz", [make_page(content_type="text/html\r\n\r\nZZZ", charset="x\r\n\r\nZZZ")])
    (page,) = read_pages(Folder(tmp_path), "p.warc.gz")
    assert (page.content_type, page.charset, page.fault) == ("text/html", None, "")


def injected(body: bytes, number: int) -> bytes:
    """A record as earlier versions wrote it: its HTTP head has line ends from a charset."""
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=x\r\n\r\nZZZ\r\n\r\n" + body
    digest = hashlib.sha256(body).hexdigest()
    head = (
        f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/{number}\r\n"
        f"WARC-Date: 2026-01-02T03:04:05Z\r\nWARC-Payload-Digest: sha256:{digest}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + http + b"\r\n\r\n")


def test_an_injected_record_head_costs_one_page_only(tmp_path: Path) -> None:
    text = "<p>The river runs through valley {}, and people walk along it of an evening.</p>"
    body = f"<html><body><article>{''.join(map(text.format, range(9)))}</article></body></html>".encode()
    good = [make_page(body, url=f"http://a.example/{n}") for n in (0, 2)]
    folder = Folder(tmp_path)
    step = Step(folder, "download", version=1, parameters={}, inputs={}, folder="pages")
    with step.folder.writing("part-00000.warc.gz") as draft:
        draft.write_bytes(encode_record(good[0]) + injected(body, 1) + encode_record(good[1]))
    pages = step.commit(Outcome(outputs=(step.folder.record("part-00000.warc.gz"),)))
    with Inline(1) as runner:
        documents = extract(folder, pages, ExtractSettings(prefilter=False), runner)
    assert (documents.outcome.kept, documents.outcome.reasons) == (2, {"broken_record": 1})
    (row,) = rejected_of(folder, documents)
    assert row["url"] == "http://a.example/1"
    assert row["detail"].startswith("part-00000.warc.gz, byte ") and row["detail"].endswith("it was written with")


AGENT = "gpt2train"
WILD = "User-agent: *\n" + "".join(f"Disallow: /*a*b{number}\n" for number in range(23_000))


def allows(rules: RobotsRules, path: str) -> bool:
    return asyncio.run(rules.allows(f"http://a.example/{path}", AGENT))


def test_many_rules_take_bounded_time_for_any_url(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RobotsRules(f"{WILD}Disallow: /private\nAllow: /private/open\nCrawl-delay: 2.5\n")
    assert allows(rules, "a" * 100) and not allows(rules, "a/b77")
    assert allows(rules, "private/open/x") and not allows(rules, "private")
    assert (rules.delay(AGENT), RobotsRules("").delay(AGENT)) == (2.5, 0.0)
    monkeypatch.setattr("protego.Protego.can_fetch", pytest.fail)
    assert not allows(rules, "a" * 8000)  # 0.4 s of CPU time to compare; what cannot be compared is forbidden


BODY = b"<p>A page of some words.</p>" * 40
RAW = zlib.compress(BODY)[2:-4]  # half of the servers send deflate so
# The last ones: a coding that a proxy names once too often, and stray bytes behind what is complete.
CODED = {
    "gzip": [gzip.compress(BODY), gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), gzip.compress(BODY) + b"\x1f"],
    "deflate": [zlib.compress(BODY), RAW],
    "gzip, gzip": [gzip.compress(gzip.compress(BODY)), gzip.compress(BODY), gzip.compress(BODY) + b"\0\0\x1f"],
    "deflate, gzip": [gzip.compress(zlib.compress(BODY)), gzip.compress(RAW)],
}


@pytest.mark.parametrize("encoding", CODED)
def test_a_body_is_decoded_alike_however_it_arrives(encoding: str) -> None:
    for sent in CODED[encoding]:
        for size in (1, 2, 3, 11, len(sent)):
            decoder = Decoder(encoding)
            parts = [decoder.feed(sent[at : at + size], 10_000) for at in range(0, len(sent), size)]
            assert (b"".join(parts), decoder.unfinished) == (BODY, ""), (sent[:4], size)


def test_the_product_of_agents_and_rules_is_bounded() -> None:
    """The first of these asked for 2 x 10^8 rules from 360 kB."""
    for text in (
        "".join(f"User-agent: a{n}\n" for n in range(10_000)) + "Disallow: /x\n" * 20_000,
        "".join(f"user agent a{n}\n" for n in range(4_000)) + "".join(f"Allow: /{n}\n" for n in range(4_000)),
        "".join(f"User-agent: a{n}\n" for n in range(MAX_AGENTS + 1)) * 2,
    ):
        began = time.process_time()
        with pytest.raises(FetchRejectedError, match="too many rules"):
            RobotsRules(text)
        assert time.process_time() - began < 2, text[:50]


def test_long_lists_of_bots_are_read() -> None:
    names = [f"bot-{number}" for number in range(3_000)]
    one = "".join(f"User-agent: {name}\n" for name in names) + "Disallow: /\n\nUser-agent: *\nDisallow: /x\n"
    each = "".join(f"User-agent: {name}\nDisallow: /\n\n" for name in names) + "User-agent: *\nDisallow: /x\n"
    for text in (one, each):
        assert [allows(RobotsRules(text), path) for path in ("page", "x")] == [True, False]


def test_an_adversarial_file_delays_only_its_own_host(site: Site) -> None:
    site.robots["evil.test"] = (200, "".join(f"User-agent: a{n}\n" for n in range(9000)) + "Disallow: /x\n" * 20_000)
    site.robots["slow.test"] = (200, WILD)
    urls = ["http://evil.test/page", "http://slow.test/page", "http://slow.test/" + "a" * 8000, "http://a.test/page"]
    pages = fetch(site, urls, max_wire_bytes=2**20)
    assert [page.reason for page in pages] == ["robots_unavailable", "", "robots_forbidden", ""]


NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
DATE = ("Date", "Fri, 02 Jan 2026 03:04:05 GMT")
HOUR = "2026-01-02T04:04:05Z"
MOST = (NOW + datetime.timedelta(days=MAX_DAYS)).strftime("%Y-%m-%dT%H:%M:%SZ")
IN_AN_HOUR = ("Expires", "Fri, 02 Jan 2026 04:04:05 GMT")
LONG = "9" * 5000


def control(*values: str, **fields: str) -> list[tuple[str, str]]:
    return [*(("Cache-Control", value) for value in values), *fields.items()]


@pytest.mark.parametrize(
    ("expected", "headers"),
    [
        (HOUR, [control("max-age=3600"), control('public, MAX-AGE="3600"'), control("public", "max-age=3600")]),
        (HOUR, [control("max-age=7200", Age="3600"), control("max-age=7200", Date="Fri, 02 Jan 2026 02:04:05 GMT")]),
        (HOUR, [control("max-age=3600", Expires="Fri, 02 Jan 2026 09:04:05 GMT"), [DATE, IN_AN_HOUR], [IN_AN_HOUR]]),
        (MOST, [control("max-age=31536000")]),
        ("", [control(value) for value in ("max-age=0", "max-age=-1", "max-age=1h", "max-age", f"max-age={LONG}")]),
        ("", [control("max-age=3600, no-cache"), control('no-cache="Set-Cookie", max-age=3600')]),
        ("", [control("no-store, max-age=3600"), control("max-age=3600, " + "x" * 1024 + ", no-store")]),
        ("", [control("s-maxage=3600"), control("max-age=3600, max-age=60"), []]),
        ("", [control("max-age=3600", Age=age) for age in ("3600", "?")]),
        ("", [control("max-age=3600", Vary="Accept, *"), control(Expires="0"), [IN_AN_HOUR] * 2]),
        ("", [[DATE, ("Expires", DATE[1]), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")]]),
    ],
)
def test_lifetime(expected: str, headers: list[list[tuple[str, str]]]) -> None:
    for fields in headers:
        assert fresh_until(CIMultiDict(fields), NOW) == expected, fields


def test_a_page_is_fresh_before_that_time() -> None:
    second = datetime.timedelta(seconds=1)
    until = fresh_until(CIMultiDict([("Cache-Control", "max-age=1")]), NOW)
    assert is_fresh(until, NOW) and not is_fresh(until, NOW + second) and not is_fresh("", NOW)
