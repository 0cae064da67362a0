"""Web archives of other programs: every page is found and indexed; each fault has a reason and costs no other page."""

import gzip
import io
import os
import random
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from tasks.blacklist.settings import BlacklistSettings
from tasks.download.response_body import FetchRejectedError
from tasks.extract.step import ExtractSettings, extract
from tasks.sources.archive_stream import ArchiveStream, open_archive
from tasks.sources.http_payload import split_response, unchunk, unpack
from tasks.sources.index import read_pages
from tasks.sources.warc_records import read_records
from tasks.sources.warcs import ArchiveConsent, WarcSettings, find_warcs, warcs
from tests.tasks.corpus import Inline, rows_of
from tests.tasks.sources.archives import (
    BODY,
    COMPRESSORS,
    INFO,
    archive,
    chunked,
    cut_members,
    faults_of,
    index,
    members,
    numbered,
    pages_of,
    record,
    response,
    url,
    zeros,
    zstd,
)

LARGE = 15 * 2**20
MEMORY = """
import resource, sys
from tasks.core.runner import Runner
from tasks.sources.warcs import WarcSettings, find_warcs, warcs_part
from gpt2train.store.folder import Folder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(file,) = find_warcs([sys.argv[1]])
outcome = warcs_part(Folder(sys.argv[2]), "part-00000", file, WarcSettings())
print(outcome.kept, sorted(outcome.reasons.items()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
EMPTY = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 0\r\n\r\n"
LONG = EMPTY.replace(b"Length: 0", b"Length: 100000")
BOMBS = {
    "line feeds": (EMPTY, b"\n"),
    "line feeds after a fault": (EMPTY + b"x\n", b"\n"),
    "short lines after a fault": (EMPTY + b"x\n", b"x\n"),
    "lines like a record's": (EMPTY + b"x\n", b"WARC/\n"),
    "broken records": (EMPTY + b"x\n", b"\r\n\r\nWARC/1.0\r\n\r\n"),
    "records without an end": (b"", EMPTY + b"x"),
    "records with a wrong length": (b"", LONG),
}
PIECES = [b"\n", b"\r\n", b"WARC/", b"x", b"\r", b"WAR", b"y" * 70_000]
RECORDS = [response(number, numbered(number) * (number + 1)) for number in range(4)]
PARTS = [members([record]) for record in RECORDS]
DAMAGED = {
    "cut": [*PARTS[:3], PARTS[3][:-40]],
    "flipped": [PARTS[0], PARTS[1][:60] + bytes([PARTS[1][60] ^ 0xFF]) + PARTS[1][61:], *PARTS[2:]],
    "wrong length": [PARTS[0], members([response(1, b"<p>short", length=9999)]), *PARTS[2:]],
    "no header": [PARTS[0], members([b"no record\r\n\r\n"]), *PARTS[2:]],
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compression_is_read_and_indexed(tmp_path: Path, name: str) -> None:
    records = [INFO]
    for number in range(1, 8):
        records += [record("request", number, b"GET / HTTP/1.1\r\n\r\n"), response(number, numbered(number))]
        records += [record("metadata", number, b"fetchTimeMs: 7")]
    path = archive(tmp_path, COMPRESSORS[name](records), name)
    manifest = index(tmp_path / "out", path, shard_rows=2)
    pages = pages_of(tmp_path / "out", manifest)
    assert [(page.url, page.body) for page in pages] == [(url(n), numbered(n)) for n in range(1, 8)]
    assert {(page.source, page.charset, page.fetched_at) for page in pages} == {(name, "utf-8", "2026-01-02T03:04:05Z")}
    assert (manifest.outcome.seen, manifest.outcome.kept, manifest.outcome.reasons) == (7, 7, {})
    # Records can be read separately if each is compressed alone or none is compressed.
    assert len(manifest.outputs) == (1 if "stream" in name or "zst" in name else 4)


@pytest.mark.parametrize("name", ["one_stream.warc.gz", "stream.warc.zst"])
def test_a_large_stream_is_split_into_shards(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sources.warcs.MAX_SHARD_FACTOR", 3)
    path = archive(tmp_path, COMPRESSORS[name]([response(n, numbered(n)) for n in range(7)]), name)
    manifest = index(tmp_path / "out", path, shard_rows=1)
    assert [output.rows for output in manifest.outputs] == [3, 3, 1]
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(n) for n in range(7)]


def test_pages_equal_those_of_warcio(tmp_path: Path) -> None:
    """Comparison on valid archives; those of `test_warc` are written by warcio itself."""
    records = [response(n, numbered(n) * (n + 1), "Content-Language: en") for n in range(20)]
    path = archive(tmp_path, members([INFO, *records]))
    with path.open("rb") as file:
        responses = (one for one in ArchiveIterator(file) if one.rec_type == "response")
        theirs = [(one.rec_headers.get_header("WARC-Target-URI"), one.content_stream().read()) for one in responses]
    ours = pages_of(tmp_path / "out", index(tmp_path / "out", path))
    assert [(page.url, page.body) for page in ours] == theirs


def resource(number: int, body: bytes, kind: str = "text/html; charset=latin-1") -> bytes:
    return record("resource", number, body).replace(b"application/http", kind.encode())


def test_pages_of_resource_records_are_read(tmp_path: Path) -> None:
    """As `warcit` makes them of files; the screenshots and logs of crawlers are no pages and no faults."""
    refusal = b'<meta name="robots" content="noai"><p>No.'
    records = [resource(1, b"<p>caf\xe9"), resource(2, b"\x89PNG", "image/png"), resource(3, refusal)]
    path = archive(tmp_path, members([INFO, *records, response(4, numbered(4)), resource(5, b"", "text/plain")]))
    manifest = index(tmp_path / "out", path, consent=ArchiveConsent(agent="bot"))
    pages = pages_of(tmp_path / "out", manifest)
    assert [(page.url, page.body) for page in pages] == [(url(1), b"<p>caf\xe9"), (url(4), numbered(4))]
    assert pages[0].charset == "latin-1" and manifest.outcome.reasons == {"noai": 1}


def test_pages_have_the_language_of_their_header(tmp_path: Path) -> None:
    """As the pages of the download; the extraction takes it where the page itself names none."""
    languages = {
        **{"Content-Language: de, en": "de, en", "content-language: zh-Hans-CN": "zh-Hans-CN"},
        **{"Content-Language: <b>": "", "Content-Language: ": "", "X-Language: de": ""},
    }
    text = "<p>" + "The traveller looked for the harbour, but nobody knew where it was. " * 12 + "</p>"
    body = f"<html><head><title>t</title></head><body><article>{text}</article></body></html>".encode()
    path = archive(tmp_path, members([response(number, body, header) for number, header in enumerate(languages)]))
    made = index(tmp_path / "out", path)
    assert [page.content_language for page in pages_of(tmp_path / "out", made)] == [*languages.values()]
    with Inline() as runner:
        manifest = extract(Folder(tmp_path / "out"), made, ExtractSettings(), runner)
    hints = [row["language_hint"] for row in rows_of(Folder(tmp_path / "out"), manifest)]
    assert hints[:2] == ["de", "zh"] and not any(hints[2:])


def test_blacklist_rules_apply_if_asked(tmp_path: Path) -> None:
    records = [response(n, numbered(n)).replace(b"a.example/10", b"youtube.com/1") for n in (8, 9, 10, 11)]
    path = archive(tmp_path, members(records))
    assert index(tmp_path / "out", path).outcome.kept == 4
    manifest = index(tmp_path / "out", path, blacklist=True)
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(8), url(9), url(11)]
    assert manifest.outcome.reasons == {"blacklisted_domain": 1}
    rules = BlacklistSettings(min_length=19)
    other = warcs(Folder(tmp_path / "out"), find_warcs([str(path)]), WarcSettings(blacklist=True), Inline(), rules)
    assert other.outcome.reasons == {"blacklisted_domain": 1, "too_short": 2}


def test_signals_of_headers_and_tags_are_honoured_if_enabled(tmp_path: Path) -> None:
    tag = b'<html><head><meta name="robots" content="noimageai"></head>' + BODY
    records = [
        response(1, numbered(1)),
        response(2, numbered(2), "X-Robots-Tag: noai"),
        response(3, numbered(3), "X-Robots-Tag: otherbot: noai", "TDM-Reservation: 1"),
        response(4, numbered(4), "Content-Signal: search=yes, ai-train=no"),
        response(5, tag),
        response(6, numbered(6), "X-Robots-Tag: gptbot: noai"),
        response(7, numbered(7), "X-Robots-Tag: noindex", "TDM-Reservation: 0"),
    ]
    path = archive(tmp_path, members(records))
    before = index(tmp_path / "out", path)
    assert before.outcome.kept == 7
    consent = ArchiveConsent(agent="gpt2train", honour=("noai", "tdm_reservation", "content_signal"))
    manifest = index(tmp_path / "out", path, consent=consent)
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(5), url(7)]
    assert manifest.outcome.reasons == {"content_signal": 1, "noai": 2, "tdm_reservation": 1}
    assert manifest.outcome.facts["noimageai_signals"] == 1  # recorded, not honoured
    assert "a.warc.gz, byte " in str(faults_of(tmp_path / "out", manifest)[0])
    off = consent.model_copy(update={"enabled": False})
    assert index(tmp_path / "out", path, consent=off) == before


def test_the_index_has_no_path_and_a_moved_archive_is_found(tmp_path: Path) -> None:
    data = members([response(n, numbered(n)) for n in range(3)])
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = archive(tmp_path / "here", data)
    index(tmp_path / "out", here, archive(tmp_path, data, "further.warc.gz"))
    first = index(tmp_path / "out", here)
    assert [path.name for path in (tmp_path / "out/warcs/_places").iterdir()] == ["part-00000.json"]
    there = tmp_path / "there" / here.name
    here.rename(there)
    with Inline() as runner:
        again = index(tmp_path / "out", there, runner=runner)
        assert runner.skipped == {"warcs"}
    assert again == first
    assert len(pages_of(tmp_path / "out", again)) == 3
    for file in first.outcome.files:
        assert b"here" not in (tmp_path / "out" / "warcs" / file.name).read_bytes()


def test_a_changed_archive_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path, members([response(1, numbered(1)), response(2, numbered(2))]))
    manifest = index(tmp_path / "out", path)
    path.write_bytes(members([response(1, numbered(1)), response(2, numbered(3))]))
    with pytest.raises(RunError, match=r"a\.warc\.gz has changed since it was indexed"):
        pages_of(tmp_path / "out", manifest)
    assert index(tmp_path / "out", path).content != manifest.content


def test_files_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    paths = b"crawl-data/CC-MAIN-2024-10/a.warc.gz\n"
    for name, data, message in (
        ("list.warc.gz", gzip.compress(b"http://a.example/\n"), r"is not a WARC: it begins with .*http.*--urls"),
        ("warc.paths.gz", gzip.compress(paths), "is not a WARC: .* it lists archives of Common Crawl"),
        ("pages.wacz", b"PK\x03\x04\x14\0", r"is not a WARC: .* 'zip://archive/\*\.warc\.gz::FILE'"),
        ("old.arc.gz", gzip.compress(b"filedesc://a.arc 0.0.0.0 2006"), "is not a WARC: .* warcio recompress"),
        ("text.warc.wet.gz", members([INFO]), "holds extracted text .*--documents"),
    ):
        with pytest.raises(UserError, match=f"{name} {message}"):
            find_warcs([str(archive(tmp_path, data, name))])
    with pytest.raises(UserError, match=r"no file matches .*--warcs"):
        find_warcs([f"{tmp_path}/*.arc"])
    with pytest.raises(
        UserError, match=r"hold no page that can be used \(http_status 1; x\.warc\.gz, byte 0: 404, 200 exp"
    ):
        index(tmp_path / "out", archive(tmp_path, members([response(1, BODY, status="404 gone")]), "x.warc.gz"))


def test_the_archives_of_a_wacz_are_read_in_it(tmp_path: Path) -> None:
    root, place = Folder(tmp_path / "out"), tmp_path / "a.wacz"
    with zipfile.ZipFile(place, "w") as packed:
        for part in range(2):
            pages = [response(n, numbered(n)) for n in range(3 * part, 3 * part + 3)]
            packed.writestr(f"archive/{part}.warc.gz", members([INFO, *pages]))
    with Inline(workers=1) as runner:
        found = find_warcs([f"zip://archive/*.warc.gz::{place}"])
        manifest = warcs(root, found, WarcSettings(shard_rows=2), runner)
    assert [page.body for page in pages_of(tmp_path / "out", manifest)] == [numbered(n) for n in range(6)]


def test_an_archive_that_needs_a_dictionary_is_named(tmp_path: Path) -> None:
    frame = b"\x28\xb5\x2f\xfd\x21\x07\x0e" + (14 << 3 | 1).to_bytes(3, "little") + b"WARC/1.0\r\nX: y"
    with pytest.raises(UserError, match=r"a\.warc\.zst, byte 0: the packed data end too soon: needs a dictionary; unp"):
        index(tmp_path / "out", archive(tmp_path, frame, "a.warc.zst"))


def test_pages_without_a_media_type_are_sniffed_and_malformed_ones_are_read(tmp_path: Path) -> None:
    types = [
        b"",
        b"Content-Type: text/html; charset=\xc3\xa9\x80\r\n",
        b"Content-Type: text/html;charset*;charset*0\r\n",
    ]
    pages = [(kind, BODY) for kind in types] + [(b"", b"\x89PNG\r\n\x1a\n" + bytes(50)), (b"", b"words")]
    heads = [b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n" + body for kind, body in pages]
    data = members([record("response", number, block) for number, block in enumerate(heads)])
    manifest = index(tmp_path / "out", archive(tmp_path, data))
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (3, {"content_type": 2})
    found = [(page.url, page.content_type, page.charset, page.body) for page in pages_of(tmp_path / "out", manifest)]
    assert found == [(url(number), "text/html", None, BODY) for number in range(3)]


@pytest.mark.parametrize("ends", ["\r\n\r\n", "\n\n", "\n\r\n", "\r\n\n"])
def test_an_http_head_ends_at_the_first_empty_line(ends: str) -> None:
    head, body = split_response(f"HTTP/1.1 200 OK\nContent-Type: text/html{ends}one\r\n\r\ntwo\n\n".encode())
    assert (head.headers, body) == ([("Content-Type", "text/html")], b"one\r\n\r\ntwo\n\n")


@pytest.mark.parametrize("status", ["100 Continue", "103 Early Hints\r\nLink: </a.css>; rel=preload"])
def test_interim_heads_before_the_response_are_left_out(tmp_path: Path, status: str) -> None:
    interim = f"HTTP/1.1 {status}\r\n\r\n".encode()
    blocks = [interim * 2 + b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + BODY, interim, interim * 20]
    data = members(record("response", number, block) for number, block in enumerate(blocks))
    manifest = index(tmp_path / "out", archive(tmp_path, data))
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"broken_record": 1, "http_status": 1})
    (page,) = pages_of(tmp_path / "out", manifest)
    assert page.body == BODY


BODIES = {
    "plain": (BODY, []),
    "chunked": (chunked(BODY), ["Transfer-Encoding: chunked"]),
    "unchunked already": (BODY, ["Transfer-Encoding: chunked"]),
    "gzip": (gzip.compress(BODY), ["Content-Encoding: gzip"]),
    "gzip in members": (gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), ["Content-Encoding: x-gzip"]),
    "gzip as a transfer coding": (chunked(gzip.compress(BODY)), ["Transfer-Encoding: gzip, chunked"]),
    "gzip in chunks": (chunked(gzip.compress(BODY), 33), ["Transfer-Encoding: chunked", "Content-Encoding: GZIP"]),
    "unpacked already": (BODY, ["Content-Encoding: gzip"]),
    "gzip with a tail": (gzip.compress(BODY) + b"<!-- cached -->", ["Content-Encoding: gzip"]),
    "gzip with zeros and a tail": (gzip.compress(BODY) + bytes(9) + b"\r\n", ["Content-Encoding: gzip"]),
    "deflate": (zlib.compress(BODY), ["Content-Encoding: deflate"]),
    "deflate with a tail": (zlib.compress(BODY) + b"\r\n<!-- cached -->", ["Content-Encoding: deflate"]),
    "bare deflate": (zlib.compress(BODY, wbits=-15), ["Content-Encoding: deflate"]),
    "brotli": (brotli.compress(BODY), ["Content-Encoding: br"]),
    "no brotli any more": (BODY, ["Content-Encoding: br"]),
    "zstd": (zstd(BODY), ["Content-Encoding: zstd"]),
    "no zstd any more": (BODY, ["Content-Encoding: zstd"]),
    "neither of two any more": (BODY, ["Content-Encoding: br, gzip"]),
    "two": (gzip.compress(brotli.compress(BODY)), ["Content-Encoding: br, gzip"]),
    "the same twice": (gzip.compress(gzip.compress(BODY)), ["Content-Encoding: gzip, gzip"]),
    "longer between the two": (gzip.compress(gzip.compress(BODY, 0)), ["Content-Encoding: gzip, gzip"]),
    "named twice": (gzip.compress(BODY), ["Content-Encoding: gzip, gzip"]),
    "gzip with half a head as its tail": (gzip.compress(BODY) + b"\x1f", ["Content-Encoding: gzip"]),
    "identity": (BODY, ["Content-Encoding: identity"]),
    "no coding": (BODY, ["Content-Encoding: UTF-8"]),
    "no coding, gzip": (gzip.compress(BODY), ["Content-Encoding: none, gzip"]),
}


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_are_decoded_as_crawlers_store_them(tmp_path: Path, kind: str) -> None:
    body, headers = BODIES[kind]
    path = archive(tmp_path, members([response(1, body, *headers)]))
    (page,) = pages_of(tmp_path / "out", index(tmp_path / "out", path))
    assert page.body == BODY


def test_a_body_of_many_chunks_and_gzip_members_is_read() -> None:
    """Bounds: real pages have a few thousand of either at most."""
    for count, kept in ((60_000, True), (70_000, False)):
        body = b"1\r\nx\r\n" * count + b"0\r\n\r\n"
        if kept:
            assert unchunk(body) == b"x" * count
        else:
            with pytest.raises(FetchRejectedError, match="chunks"):
                unchunk(body)
    member = gzip.compress(b"", mtime=0)
    page = gzip.compress(BODY, mtime=0)
    for count in (0, 100, 4000):
        assert unpack(member * count + page, "gzip", 2**24, 100.0) == BODY
    assert unpack(b"".join(gzip.compress(BODY[n : n + 1]) for n in range(len(BODY))), "gzip", 2**24, 100.0) == BODY
    began = time.process_time()
    with pytest.raises(FetchRejectedError, match="members"):
        unpack(member * (2**23 // len(member)), "gzip", 2**24, 100.0)
    assert unpack(page + bytes(2**23), "gzip", 2**24, 100.0) == BODY  # padding
    assert time.process_time() - began < 3


def coded(encoding: str, body: bytes) -> bytes:
    return response(1, body, f"Content-Encoding: {encoding}")


def chunks(body: bytes) -> bytes:
    return response(1, body, "Transfer-Encoding: chunked")


REFUSED = {
    "a picture": (response(1, b"\x89PNG", content_type="image/png"), "content_type", "image/png"),
    "no type": (response(1, b"words and no page", content_type=""), "content_type", "none"),
    "not found": (response(1, BODY, status="404 Not Found"), "http_status", "404"),
    "no status": (response(1, BODY, status=""), "http_status", "none"),
    "nothing": (response(1, b""), "empty", "no bytes"),
    "not HTTP": (record("response", 1, b"\x00\x01\x02"), "broken_record", "no HTTP head"),
    "a name's address": (
        record("response", 1, b"20260102030405\na.example. 60 IN A 192.0.2.1\n").replace(
            b"application/http", b"text/dns"
        ),
        "content_type",
        "text/dns, application/http expected",
    ),
    "endless HTTP head": (record("response", 1, b"HTTP/1.1 200 OK\r\n" + b"x" * 10**5), "broken_record", "no HTTP"),
    "cut gzip": (coded("gzip", gzip.compress(BODY)[:-20]), "content_encoding", "end too soon"),
    "cut brotli": (coded("br", brotli.compress(BODY)[:-9]), "content_encoding", "too soon"),
    "no brotli": (coded("br", b"\xff" * 99), "content_encoding", "not the brotli"),
    "cut zstd": (coded("zstd", zstd(BODY)[:-9]), "content_encoding", "not the zstd"),
    "zstd bomb": (coded("zstd", zstd(bytes(LARGE))), "compression_ratio", "100 times"),
    "four encodings": (coded("gzip, gzip, br, gzip", BODY), "content_encoding", "4 codings, at most 3"),
    "bomb in gzip": (coded("gzip, gzip", gzip.compress(zeros(LARGE))), "compression_ratio", "100 times"),
    "gzip bomb of gzip": (coded("gzip, gzip", zeros(LARGE)), "compression_ratio", "100 times"),
    "two encodings, the inner one cut": (
        coded("deflate, br", brotli.compress(zlib.compress(BODY)[:-9])),
        "content_encoding",
        "the deflate data end too soon",
    ),
    "cut chunks": (chunks(chunked(BODY)[:-700]), "transfer_encoding", "longer"),
    "odd chunks": (chunks(b"5\r\nabcde\r\nhello"), "transfer_encoding", "no chunk begins at byte 10"),
    "negative chunk": (chunks(b"3\r\nabc\r\n-5\r\nab"), "transfer_encoding", "byte 8"),
    "gzip bomb": (coded("gzip", zeros(LARGE)), "compression_ratio", "100 times"),
    "deflate bomb": (coded("deflate", zeros(LARGE, -15)), "compression_ratio", "100 times"),
    "brotli bomb": (coded("br", brotli.compress(bytes(LARGE), quality=5)), "compression_ratio", "100 times"),
    "too large": (response(1, b"<p>" + os.urandom(2**16)), "too_large", "longer than the bound"),
    "a length that is none": (record("response", 1, BODY).replace(b"Length: ", b"Length: x"), "broken_record", "'x"),
    "a negative length": (response(1, BODY, length=-5), "broken_record", "'-5'"),
    "no kind": (response(1, BODY).replace(b"WARC-Type: response\r\n", b""), "broken_record", "no WARC-Type"),
    "a segment": (record("continuation", 1, BODY), "broken_record", "not joined"),
    "no length": (record("response", 1, BODY).replace(b"Content-Length", b"Content-Breadth"), "broken_record", "''"),
    "a length too large": (response(1, BODY, length=10**6), "broken_record", "ends after"),
    "a length too small": (response(1, BODY, length=100), "broken_record", "goes on after"),
    "no head": (b"<html>what is this</html>\r\n\r\n", "broken_record", "no record begins"),
    "a head without end": (b"WARC/1.0\r\nX: " + b"y" * 10**5 + b"\r\n\r\n", "broken_record", "longer than 65,536"),
}


@pytest.mark.parametrize("pack", ["members.warc.gz", "plain.warc", "one_stream.warc.gz", "frames.warc.zst"])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_fault_has_a_reason_and_costs_no_other_page(tmp_path: Path, kind: str, pack: str) -> None:
    bad, reason, said = REFUSED[kind]
    good = [response(n, numbered(n)) for n in (2, 3, 4)]
    path = archive(tmp_path, COMPRESSORS[pack]([INFO, good[0], bad, good[1], good[2]]), pack)
    manifest = index(tmp_path / "out", path, max_record=50_000 if kind == "too large" else 2**20)
    found = [page.url for page in pages_of(tmp_path / "out", manifest)]
    # Records within a wrong length are found by a second search, unless the compression allows no seek.
    lost = [url(3), url(4)] if kind == "a length too large" and "zst" in pack else []
    assert found == [url(n) for n in (2, 3, 4) if url(n) not in lost]
    [(place, given, detail)] = faults_of(tmp_path / "out", manifest)
    assert place in (url(1), "") and said in detail and detail.startswith(f"{pack}, byte ")
    assert given in ((reason, "truncated_record") if kind == "a length too large" else (reason,))
    if pack == "members.warc.gz":
        offset = int(detail.split("byte ")[1].split(":")[0].replace(",", ""))
        assert offset == len(members([INFO, good[0]]))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_flipped_byte_costs_at_most_its_record(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flip")
    packed = [members([response(n, b"%032x" % random.Random(n).getrandbits(128) + BODY)]) for n in range(5)]
    whole = bytearray(b"".join(packed))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    hit = next(n for n in range(5) if at < sum(map(len, packed[: n + 1])))
    manifest = index(folder / "out", archive(folder, members([INFO]) + bytes(whole)))
    found = [page.url for page in pages_of(folder / "out", manifest)]
    assert set(found) >= {url(n) for n in range(5)} - {url(hit)}
    if url(hit) not in found:
        assert manifest.outcome.reasons.keys() & {"broken_record", "truncated_record"}
    # A flip outside of the record (as in the time of the gzip header) may leave it unchanged.
    for page in pages_of(folder / "out", manifest):
        assert page.body.endswith(BODY)


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_a_truncated_file_keeps_its_whole_pages(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("cut")
    packed = [members([response(n, numbered(n))]) for n in range(3)]
    first = len(packed[0])
    cut = data.draw(st.integers(first + 1, sum(map(len, packed)) - 1))
    manifest = index(folder / "out", archive(folder, b"".join(packed)[:cut]))
    whole = 2 if cut >= first + len(packed[1]) else 1
    assert [page.url for page in pages_of(folder / "out", manifest)] == [url(n) for n in range(whole)]
    if cut > sum(map(len, packed[:whole])):
        assert manifest.outcome.reasons == {"truncated_record": 1}


@pytest.mark.parametrize("name", ["one_stream.warc.gz", "frames.warc.zst", "stream.warc.zst", "stream.warc.xz"])
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_truncated_archive_of_any_compression_keeps_its_whole_pages(tmp_path: Path, name: str, share: float) -> None:
    noise = random.Random(1)
    pages = [BODY + noise.randbytes(900).hex().encode() for _ in range(300)]
    whole = COMPRESSORS[name]([INFO, *(response(number, page) for number, page in enumerate(pages))])
    manifest = index(tmp_path / "out", archive(tmp_path, whole[: int(len(whole) * share)], name))
    found = [page.url for page in pages_of(tmp_path / "out", manifest)]
    # The last page is damaged; zstd's last block, of 128 KiB, cannot be decompressed.
    assert found == [url(number) for number in range(len(found))]
    assert 300 * share - (50 if name == "stream.warc.zst" else 10) < len(found) < 300
    assert manifest.outcome.reasons == {"truncated_record": 1}


def test_a_gap_in_the_middle_costs_its_records_only(tmp_path: Path) -> None:
    """Kilobytes of noise where records were, as after a broken transfer."""
    before, after = members([response(1, BODY)]), members([response(n, numbered(n)) for n in (2, 3)])
    manifest = index(tmp_path / "out", archive(tmp_path, before + os.urandom(200_000) + after))
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(2), url(3)]
    assert manifest.outcome.reasons == {"broken_record": 1}


def test_a_damaged_member_of_bgzip_costs_its_records_only(tmp_path: Path) -> None:
    data = cut_members([response(n, numbered(n)) for n in range(9)])
    at = data.index(b"\x1f\x8b\x08", len(data) // 3)
    path = archive(tmp_path, data[: at + 40] + bytes(9) + data[at + 49 :])
    manifest = index(tmp_path / "out", path)
    assert manifest.outcome.reasons.keys() == {"broken_record"} and manifest.outcome.kept >= 6
    assert pages_of(tmp_path / "out", manifest)[-1].url == url(8)


def test_a_record_whose_rest_is_damaged_is_no_page(tmp_path: Path) -> None:
    """Its member ends before the record does, and what follows is no member."""
    cut = members([response(1, BODY)]) + gzip.compress(response(2, BODY)[:-700])
    path = archive(tmp_path, cut + b"no gzip" * 1000 + members([response(3, BODY)]))
    manifest = index(tmp_path / "out", path)
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(3)]
    assert [fault[:2] for fault in faults_of(tmp_path / "out", manifest)] == [(url(2), "broken_record")]


def test_a_record_of_wrong_length_before_damage_is_no_page(tmp_path: Path) -> None:
    """Its fault is reported before the search for the next record meets the damage."""
    damaged = bytearray(members([response(3, os.urandom(500))]))
    damaged[300:400] = bytes(100)
    data = members([response(1, BODY), response(2, BODY, length=60)]) + damaged + members([response(4, BODY)])
    manifest = index(tmp_path / "out", archive(tmp_path, data))
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(4)]
    found = [fault[:2] for fault in faults_of(tmp_path / "out", manifest)]
    assert found == [(url(2), "broken_record"), ("", "broken_record")]


def test_a_page_that_holds_an_archive_adds_no_pages(tmp_path: Path) -> None:
    inside = members([response(8, BODY)]) + b"\r\n\r\n" + response(9, BODY)
    page = gzip.compress(response(1, b"<p>" + inside), compresslevel=0)  # stored: the inner bytes are there unchanged
    path = archive(tmp_path, page + members([response(2, BODY)]))
    manifest = index(tmp_path / "out", path, shard_rows=1)
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(2)]


@pytest.mark.parametrize("pad", [bytes(1), bytes(600), b"\r\n\0"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_zeros_between_records_are_padding(tmp_path: Path, pack: Callable[[bytes], bytes], pad: bytes) -> None:
    path = archive(tmp_path, b"".join(pack(response(number, BODY) + pad) for number in (1, 2)), "padded.warc")
    manifest = index(tmp_path / "out", path)
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (2, {})


def test_records_without_empty_lines_between_them_are_read(tmp_path: Path) -> None:
    """The last of several Content-Type fields counts, and a PDF is no page."""
    twice = response(2, BODY, "Content-Type: text/html; charset=koi8-r", content_type="text/plain")
    records = [response(1, BODY), twice, response(3, b"%PDF-1.4 (Text) Tj"), response(4, BODY)]
    path = archive(tmp_path, b"".join(one.removesuffix(b"\r\n\r\n") for one in records), "glued.warc")
    manifest = index(tmp_path / "out", path)
    pages = pages_of(tmp_path / "out", manifest)
    assert [(page.url, page.charset) for page in pages] == [(url(1), "utf-8"), (url(2), "koi8-r"), (url(4), "utf-8")]
    assert manifest.outcome.reasons == {"content_type": 1}


def test_decompression_bombs_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """A record, a head, and bodies of 200 MB, each compressed to less than a megabyte."""
    large = 200 * 2**20
    claim = response(1, b"").replace(b"Content-Length: ", b"Content-Length: 9")
    data = [
        zeros(large, before=claim),
        zeros(large, before=b"WARC/1.0\r\nX: "),
        members([response(3, zeros(large), "Content-Encoding: gzip")]),
        members([response(4, zeros(large, -15), "Content-Encoding: deflate")]),
        members([response(5, BODY)]),
    ]
    path = archive(tmp_path, b"".join(data))
    command = [sys.executable, "-c", MEMORY, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, _, grown = done.stdout.rpartition(" ")
    assert found == "1 [('broken_record', 2), ('too_large', 2)]"
    assert int(grown) < 100 * 1024, f"{int(grown) / 1024:.0f} MB"


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_reading_time_is_proportional_to_the_decompressed_size(tmp_path: Path, kind: str, pack: Any) -> None:
    """CPU time: with quadratic cost 4 MiB took 7 s (line feeds) to 100 s (records in one member)."""
    begin, piece = BOMBS[kind]
    data = pack(begin + piece * (2**22 // len(piece)))
    path = archive(tmp_path, data, "a.warc.zst" if pack is zstd else "a.warc.gz")
    began = time.process_time()
    with open_archive(str(path)) as stream:
        found = list(read_records(stream, ("response",), 2**23))
    assert time.process_time() - began < 5
    assert 1 <= len(found) < 10_000
    if len(found) > 1500:
        assert "passed over" in found[-1].detail  # type: ignore[union-attr]


def test_many_broken_records_cost_only_their_gzip_member(tmp_path: Path) -> None:
    broken = b"WARC/1.0\r\n\r\n\r\n\r\n" * 3000
    data = gzip.compress(broken) + members([response(1, BODY)]) + gzip.compress(broken) + members([response(2, BODY)])
    manifest = index(tmp_path / "out", archive(tmp_path, data))
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(2)]
    assert manifest.outcome.reasons["broken_record"] < 1100
    plain = archive(tmp_path, broken + response(1, BODY), "plain.warc")  # uncompressed: each is named
    manifest = index(tmp_path / "plain", plain)
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"broken_record": 3000})


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.booleans())
def test_the_search_for_the_next_record_equals_a_search_by_lines(pieces: list[bytes], zipped: bool) -> None:
    data = b"x\n" + b"".join(pieces)
    stream = ArchiveStream(io.BytesIO(gzip.compress(data) if zipped else data), zipped)
    stream.take(0) if not stream.ready() else stream.line(10)
    found = [stream.position.skip if zipped else stream.position.offset] if stream.next_record() else []
    expected, at, after_blank = [], 2, False
    while at < len(data) and not expected:
        if after_blank and data.startswith(b"WARC/", at):
            expected.append(at)
        end = data.find(b"\n", at) + 1 or len(data)
        end = min(end, at + 2**16)
        after_blank, at = data[at:end] in (b"\n", b"\r\n"), end
    assert found == expected


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_record_is_named_and_the_others_are_read(damage: str, tmp_path: Path) -> None:
    path = archive(tmp_path, b"".join(DAMAGED[damage]))
    good = [url(number) for number in range(4) if number != (3 if damage == "cut" else 1)]
    manifest = index(tmp_path / "out", path)
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == good
    [(_, reason, detail)] = faults_of(tmp_path / "out", manifest)
    assert reason == ("truncated_record" if damage == "cut" else "broken_record") and "a.warc.gz, byte " in detail

    fetched = list(read_pages(Folder(tmp_path), path.name))
    assert [page.url for page in fetched if not page.fault] == good
    [broken] = [page for page in fetched if page.fault]
    assert broken.fault.partition(", byte ")[2] == detail.partition(", byte ")[2] and broken.body == b""


def test_a_page_without_its_digest_is_named(tmp_path: Path) -> None:
    kind = b"Content-Type: application/http"
    wrong = RECORDS[1].replace(kind, f"WARC-Payload-Digest: sha256:{'0' * 64}\r\n".encode() + kind)
    archive(tmp_path, members([RECORDS[0], wrong]))
    one, other = read_pages(Folder(tmp_path), "a.warc.gz")
    assert not one.fault and other.fault.endswith("the page does not have the digest it was written with")
