"""Adversarial pages and HTTP responses, each with the reject reasons that it may end with.

Large ones are generated while they are sent. SECRET is in every text, so that a test can check that none is printed.
"""

import gzip
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import brotli

from tests.tasks.web_server import Handler

SECRET = "xylophone-quartz"
KEPT = ""  # instead of a reason: the page is kept


@dataclass(frozen=True)
class Case:
    send: Callable[[Handler], object]
    reasons: tuple[str, ...]


def article(seed: int) -> str:
    """English prose that cleaning keeps; other words for each seed."""
    dice = random.Random(seed)
    names = ["harbour", "letter", "teacher", "winter", "river", "engine", "garden", "market", "song", "window"]
    sentences = [
        f"When the {dice.choice(names)} of the town had been {dice.choice(['found', 'lost', 'sold'])} again, the "
        f" {dice.choice(names)} near the {dice.choice(names)} was {dice.randrange(1000)} years old, and nobody "
        f"could say why the {dice.choice(names)} had not been there before."
        for _ in range(14)
    ]
    return f"{SECRET} {' '.join(sentences)}"


def html(text: str, head: str = "") -> bytes:
    return (
        f"<html><head><title>A page</title>{head}</head><body><article><p>{text}</p></article></body></html>".encode()
    )


def bodies(seed: int) -> dict[str, tuple[bytes, tuple[str, ...]]]:
    """Complete bodies with their accepted reasons, for HTTP and for archives."""
    kept = (KEPT,)
    nothing = ("no_text", "early_short", "extract_crashed", "extract_timeout")  # by the machine and its load
    languages = ("wrong_language", "no_language", "early_language")
    poor = ("undecodable", "too_short", *languages, "too_many_elements", *nothing)
    return {
        "nested-tags": (b"<div>" * 100_000 + article(seed + 1).encode() + b"</div>" * 100_000, poor),
        "nested-tables": (b"<table><tr><td>" * 5_000 + article(seed + 2).encode(), poor),
        "colspan": (
            html(f"</p><table><tr><td colspan=1000000000 rowspan=999999>{article(seed + 3)}</td></tr></table>"),
            kept,
        ),
        "entities": (b"<!DOCTYPE h [<!ENTITY a '&b;&b;'><!ENTITY b '&a;&a;'>]>" + html("&a;&b;" * 1000), poor),
        "external-entity": (b"<!DOCTYPE h [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>" + html("&a; " * 50), poor),
        "attribute": (b"<p title='" + b"x" * 5_000_000 + b"'>" + html(article(seed + 4)), kept),
        "one-word": (html("a" * 5_000_000), poor),
        "comment": (b"<!--" + b"-" * 5_000_000, poor),
        "many-paragraphs": (b"<p>x</p>" * 300_000, poor),
        "invalid-utf-8": (html(article(seed + 5)).replace(b" the ", b" th\xff\xfe "), kept),
        "nul-bytes": (html(article(seed + 6)).replace(b" the ", b" t\0he "), kept),
        "all-nul": (b"\0" * 2_000_000, poor),
        "lone-surrogates": (html(article(seed + 7)).replace(b" of ", b" \xed\xa0\x80of\xed\xbf\xbf "), kept),
        "surrogate-entities": (html(article(seed + 8).replace(" of ", " &#xd800;of&#xdfff; ")), kept),
        "binary": (random.Random(3).randbytes(200_000), poor),
        "wrong-charset": (html(article(seed + 9), "<meta charset='utf-7'>"), kept),
        "no-such-charset": (html(article(seed + 10), "<meta charset='base64'>"), kept),
        "gzip-unannounced": (
            gzip.compress(b"<p>" + article(seed + 11).encode() * 1000),
            ("content_type", "undecodable"),
        ),
        "empty": (b"", poor),
    }


def answers() -> dict[str, Case]:
    """Responses that the download has to abort."""
    member = gzip.compress(b" " * 2**26)

    def bomb(h: Handler) -> None:  # 6.4 GB
        h.head(Content_Encoding="gzip")
        for _ in range(100):
            h.wfile.write(member)

    def large(h: Handler) -> None:
        h.head(Content_Length=str(200 * 2**20))
        pour(h, itertools.repeat(b"<p>word " * 8192, 3200))

    def large_unannounced(h: Handler) -> None:
        h.head()
        pour(h, itertools.repeat(b"<p>word " * 8192, 3200))

    def chunked(h: Handler) -> None:
        h.head(Transfer_Encoding="chunked")
        pour(h, itertools.repeat(b"10000\r\n" + b"x" * 65536 + b"\r\n", 3200))

    def drip(h: Handler) -> None:
        h.head()
        for _ in range(600):
            h.wfile.write(b"x")
            time.sleep(0.1)

    def drip_headers(h: Handler) -> None:
        h.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
        for _ in range(600):
            h.wfile.write(b"x")
            time.sleep(0.1)

    def short(h: Handler) -> None:
        h.head(Content_Length="10")
        h.wfile.write(html(article(2)))

    def huge_header(h: Handler) -> None:
        h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-A: " + b"x" * 10**6 + b"\r\n\r\n")
        h.close_connection = True

    def many_headers(h: Handler) -> None:
        h.wfile.write(b"HTTP/1.1 200 OK\r\n")
        pour(h, (b"X-%d: a\r\n" % n for n in range(10**6)))
        h.close_connection = True

    return {
        "gzip-bomb": Case(bomb, ("compression_ratio", "too_large")),
        "gzip-twice": Case(
            lambda h: h.answer(gzip.compress(member), Content_Encoding="gzip, gzip"), ("compression_ratio",)
        ),
        "gzip-truncated": Case(
            lambda h: h.answer(gzip.compress(html(article(3)))[:-20], Content_Encoding="gzip"), ("content_encoding",)
        ),
        "brotli-bomb": Case(lambda h: h.answer(b"\xff" * 100_000, Content_Encoding="br"), ("content_encoding",)),
        "large-announced": Case(large, ("too_large",)),
        "large": Case(large_unannounced, ("too_large",)),
        "large-chunked": Case(chunked, ("too_large",)),
        "drip": Case(drip, ("deadline",)),
        "drip-headers": Case(drip_headers, ("deadline",)),
        "length-too-long": Case(
            lambda h: (h.head(Content_Length="100000"), h.wfile.write(html(article(4)))), ("connection_failed",)
        ),
        # Where the rest arrives later, the part of the stated length is a page.
        "length-too-short": Case(short, ("connection_failed", "protocol_error", "early_short", "too_short")),
        "huge-header": Case(huge_header, ("protocol_error",)),
        "many-headers": Case(many_headers, ("protocol_error",)),
        "redirects": Case(lambda h: h.redirect(h.path + "?x"), ("too_many_redirects",)),
        "long-redirect": Case(lambda h: h.redirect("/" + "a" * 7000 * 2), ("malformed", "protocol_error")),
        "to-file": Case(lambda h: h.redirect("file:///etc/passwd"), ("scheme_forbidden",)),
        "to-metadata": Case(lambda h: h.redirect("http://169.254.169.254/latest/meta-data/"), ("not_public_address",)),
        "to-mapped": Case(lambda h: h.redirect("http://[::ffff:169.254.169.254]/latest/"), ("not_public_address",)),
        "to-number": Case(lambda h: h.redirect("http://2852039166/latest/"), ("malformed", "not_public_address")),
        "to-private": Case(lambda h: h.redirect("http://10.0.0.1/"), ("not_public_address",)),
    }


def pour(h: Handler, pieces: Iterator[bytes]) -> None:
    for piece in pieces:
        h.wfile.write(piece)


def write_archive(path: Path) -> dict[str, tuple[str, ...]]:
    """Write a web archive of adversarial bodies, decompression bombs and broken records; URL -> accepted reasons."""
    expected: dict[str, tuple[str, ...]] = {}

    def record(
        name: str, body: bytes, reasons: tuple[str, ...], encoding: str = "", length: int | None = None
    ) -> bytes:
        url = f"http://archive.hostile.test/{name}"
        expected[url] = reasons
        http = (
            f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: {encoding or 'identity'}\r\n\r\n".encode()
        )
        size = len(http) + len(body) if length is None else length
        head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
        return gzip.compress(f"{head}Content-Length: {size}\r\n\r\n".encode() + http + body + b"\r\n\r\n", 1)

    member = gzip.compress(b" " * 2**26)
    page = html(article(40))
    with path.open("wb") as file:
        for number, (name, (body, reasons)) in enumerate(bodies(50).items()):
            file.write(record(f"{number}-{name}", body, ("empty",) if not body else reasons))
        file.write(record("gzip-bomb", member * 100, ("compression_ratio", "too_large"), "gzip"))
        file.write(record("brotli-bomb", brotli.compress(b" " * 2**28, quality=1), ("compression_ratio",), "br"))
        file.write(record("gzip-truncated", gzip.compress(page)[:-20], ("content_encoding",), "gzip"))
        file.write(record("large", b"<p>word " * 26_000_000, ("too_large",)))
        file.write(record("too-long", page, ("broken_record", "truncated_record"), length=10**9))
        file.write(record("no-number", page, ("broken_record",), length=-1))
        file.write(record("after-them", html(article(41)), (KEPT,)))
        file.write(record("cut", html(article(42)), ("truncated_record",))[:-100])
    return expected


def write_lines(folder: Path) -> dict[str, tuple[str, ...]]:
    """Write adversarial files of JSON lines; name of a record -> accepted reasons."""
    expected: dict[str, tuple[str, ...]] = {}
    lines: list[bytes] = []

    def add(line: bytes, *reasons: str, url: str = "") -> None:
        lines.append(line)
        expected[url or f"lines.jsonl#{len(lines)}"] = reasons

    def good(seed: int) -> None:
        url = f"http://lines.hostile.test/{seed}"
        add(json.dumps({"text": article(seed), "url": url}).encode(), KEPT, url=url)

    good(80)
    add(b'{"text": "cut of', "broken_json")
    add(b'{"text": ' + b"[" * 100_000, "broken_json")
    add(b'{"text": "\xff\xfe"}', "invalid_utf8")
    add(b'{"text": "' + SECRET.encode() + rb' \u0000"}', "nul")
    add(b'{"text": "' + SECRET.encode() + rb' \ud800"}', "lone_surrogate")
    add(b'{"text": 5}', "wrong_type")
    add(b"[1, 2]", "wrong_type")
    add(b'{"words": "none"}', "no_text")
    add(b'{"text": "  "}', "empty")
    add(b'{"text": 1e999}', "wrong_type", "broken_json")
    add(json.dumps({"text": "a" * 5_000_000}).encode(), "too_short", "wrong_language", "no_language")
    good(81)
    with (folder / "lines.jsonl").open("wb") as file:
        file.write(b"\n".join(lines) + b"\n" + b'{"text": "')
        file.truncate(file.tell() + 2**30)  # a line of 1 GB, that takes no room on the disk
        file.seek(0, 2)
        file.write(b'"}\n' + json.dumps({"text": article(82), "url": "http://lines.hostile.test/82"}).encode())
    expected |= {f"lines.jsonl#{len(lines) + 1}": ("too_large",), "http://lines.hostile.test/82": (KEPT,)}
    member = gzip.compress(b"x" * 2**26)
    with (folder / "packed.jsonl.gz").open("wb") as file:
        file.write(gzip.compress(json.dumps({"text": article(83)}).encode() + b'\n{"text": "'))
        file.writelines(itertools.repeat(member, 32))  # 2 GB of one line in 2 MB
        file.write(gzip.compress(b'"}\n' + json.dumps({"text": article(84)}).encode()))
    expected |= {f"packed.jsonl.gz#{n}": reasons for n, reasons in ((1, (KEPT,)), (2, ("too_large",)), (3, (KEPT,)))}
    return expected
