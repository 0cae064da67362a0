"""Web archives of other programs: every page is found and indexed, in any compression and transfer encoding."""

import gzip
import time
import zlib
from pathlib import Path

import brotli
import pytest
from warcio.archiveiterator import ArchiveIterator

from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from tasks.blacklist.settings import BlacklistSettings
from tasks.download.response_body import FetchRejectedError
from tasks.extract.step import ExtractSettings, extract
from tasks.sources.http_payload import split_response, unchunk, unpack
from tasks.sources.warcs import ArchiveConsent, WarcSettings, find_warcs, warcs
from tests.tasks.corpus import Inline, rows_of
from tests.tasks.sources.archives import (
    BODY,
    COMPRESSORS,
    INFO,
    archive,
    chunked,
    faults_of,
    index,
    members,
    numbered,
    pages_of,
    record,
    response,
    url,
    zstd,
)


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
        ("pages.wacz", b"PK\x03\x04\x14\0", "is not a WARC: .* unpack it and give its folder archive/"),
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
