"""Web archives of other programs: every page is found, every fault is named and costs no other page."""

import bz2
import gzip
import io
import lzma
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brotli
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from gpt2train.errors import RunError, UserError
from tasks.blacklist.settings import BlacklistSettings
from tasks.core.runner import Runner
from tasks.core.step import Manifest
from tasks.core.storage import Folder
from tasks.download.response_body import FetchRejectedError
from tasks.download.warc import Page
from tasks.sources.archive_stream import ArchiveStream, open_archive
from tasks.sources.http_payload import unchunk, unpack
from tasks.sources.index import read_pages
from tasks.sources.warc_records import read_records
from tasks.sources.warcs import WarcSettings, find_warcs, warcs
from tests.tasks.corpus import Inline, content_of, rejected_of
from tests.tasks.sources.archives import chunked, members, record, response, url, zeros

BODY = b"<html><body>" + b"<p>a paragraph of some words</p>" * 40
INFO = record("warcinfo", 0, b"software: none\r\n")


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


COMPRESSORS = {
    "members.warc.gz": members,
    "plain.warc": b"".join,
    "one_stream.warc.gz": lambda records: gzip.compress(b"".join(records)),
    "frames.warc.zst": lambda records: b"".join(map(zstd, records)),
    "stream.warc.zst": lambda records: zstd(b"".join(records)),
    "stream.warc.xz": lambda records: lzma.compress(b"".join(records)),
    "stream.warc.bz2": lambda records: bz2.compress(b"".join(records)),
}


def index(root: Path, *files: Path, runner: Runner | None = None, **chosen: object) -> Manifest:
    return warcs(Folder(root), find_warcs([str(file) for file in files]), WarcSettings(**chosen), runner or Inline())


def pages_of(root: Path, manifest: Manifest) -> list[Page]:
    folder = Folder(root) / manifest.folder
    return [page for output in manifest.outputs for page in read_pages(folder, output.name)]


def faults_of(root: Path, manifest: Manifest) -> list[tuple[str, str, str]]:
    rows = rejected_of(Folder(root), manifest)
    return [(row["url"], row["reason"], row["detail"]) for row in rows]


def archive(folder: Path, data: bytes, name: str = "a.warc.gz") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def numbered(number: int) -> bytes:
    return BODY + str(number).encode()


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
def test_a_large_archive_in_one_stream_is_split_into_shards(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        theirs = [
            (one.rec_headers.get_header("WARC-Target-URI"), one.content_stream().read())
            for one in ArchiveIterator(file)
            if one.rec_type == "response"
        ]
    ours = pages_of(tmp_path / "out", index(tmp_path / "out", path))
    assert [(page.url, page.body) for page in ours] == theirs


BODIES = {
    "plain": (BODY, []),
    "chunked": (chunked(BODY), ["Transfer-Encoding: chunked"]),
    "unchunked already": (BODY, ["Transfer-Encoding: chunked"]),
    "gzip": (gzip.compress(BODY), ["Content-Encoding: gzip"]),
    "gzip in members": (gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), ["Content-Encoding: x-gzip"]),
    "gzip in chunks": (chunked(gzip.compress(BODY), 33), ["Transfer-Encoding: chunked", "Content-Encoding: GZIP"]),
    "unpacked already": (BODY, ["Content-Encoding: gzip"]),
    "deflate": (zlib.compress(BODY), ["Content-Encoding: deflate"]),
    "bare deflate": (zlib.compress(BODY, wbits=-15), ["Content-Encoding: deflate"]),
    "brotli": (brotli.compress(BODY), ["Content-Encoding: br"]),
    "no brotli any more": (BODY, ["Content-Encoding: br"]),
    "identity": (BODY, ["Content-Encoding: identity"]),
}


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_are_decoded_as_crawlers_store_them(tmp_path: Path, kind: str) -> None:
    body, headers = BODIES[kind]
    path = archive(tmp_path, members([response(1, body, *headers)]))
    (page,) = pages_of(tmp_path / "out", index(tmp_path / "out", path))
    assert page.body == BODY


REFUSED = {
    "a picture": (response(1, b"\x89PNG", content_type="image/png"), "content_type", "image/png"),
    "no type": (response(1, b"words and no page", content_type=""), "content_type", "none"),
    "not found": (response(1, BODY, status="404 Not Found"), "http_status", "404"),
    "no status": (response(1, BODY, status=""), "http_status", "none"),
    "nothing": (response(1, b""), "empty", "no bytes"),
    "not HTTP": (record("response", 1, b"\x00\x01\x02"), "broken_record", "no HTTP head"),
    "endless HTTP head": (record("response", 1, b"HTTP/1.1 200 OK\r\n" + b"x" * 10**5), "broken_record", "no HTTP"),
    "cut gzip": (response(1, gzip.compress(BODY)[:-20], "Content-Encoding: gzip"), "content_encoding", "end too soon"),
    "cut brotli": (response(1, brotli.compress(BODY)[:-9], "Content-Encoding: br"), "content_encoding", "too soon"),
    "no brotli": (response(1, b"\xff" * 99, "Content-Encoding: br"), "content_encoding", "not the brotli"),
    "an encoding of the future": (response(1, BODY, "Content-Encoding: zz"), "content_encoding", "'zz'"),
    "cut chunks": (response(1, chunked(BODY)[:-700], "Transfer-Encoding: chunked"), "transfer_encoding", "longer"),
    "odd chunks": (
        response(1, b"5\r\nabcde\r\nhello", "Transfer-Encoding: chunked"),
        "transfer_encoding",
        "no chunk begins at byte 10",
    ),
    "negative chunk": (
        response(1, b"3\r\nabc\r\n-5\r\nab", "Transfer-Encoding: chunked"),
        "transfer_encoding",
        "byte 8",
    ),
    "gzip bomb": (response(1, zeros(15 * 2**20), "Content-Encoding: gzip"), "compression_ratio", "100 times"),
    "deflate bomb": (
        response(1, zeros(15 * 2**20, -15), "Content-Encoding: deflate"),
        "compression_ratio",
        "100 times",
    ),
    "brotli bomb": (
        response(1, brotli.compress(bytes(15 * 2**20), quality=5), "Content-Encoding: br"),
        "compression_ratio",
        "100 times",
    ),
    "too large": (response(1, b"<p>" + os.urandom(2**16)), "too_large", "longer than the bound"),
    "a length that is none": (record("response", 1, BODY).replace(b"Length: ", b"Length: x"), "broken_record", "'x"),
    "a negative length": (response(1, BODY, length=-5), "broken_record", "'-5'"),
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
    (fault,) = faults_of(tmp_path / "out", manifest)
    assert fault[0] in (url(1), "")
    assert fault[1] in (reason, "truncated_record")
    assert fault[1] == reason or kind == "a length too large"
    assert said in fault[2]
    assert fault[2].startswith(f"{pack}, byte ")
    if pack == "members.warc.gz":
        offset = int(fault[2].split("byte ")[1].split(":")[0].replace(",", ""))
        assert offset == len(members([INFO, good[0]]))


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
def test_a_truncated_file_keeps_its_complete_pages(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    packed = [members([response(n, numbered(n))]) for n in range(3)]
    first = len(packed[0])
    cut = data.draw(st.integers(first + 1, sum(map(len, packed)) - 1))
    manifest = index(folder / "out", archive(folder, b"".join(packed)[:cut]))
    whole = 2 if cut >= first + len(packed[1]) else 1
    assert [page.url for page in pages_of(folder / "out", manifest)] == [url(n) for n in range(whole)]
    if cut > sum(map(len, packed[:whole])):
        assert manifest.outcome.reasons == {"truncated_record": 1}


def test_a_gap_in_the_middle_costs_its_records_only(tmp_path: Path) -> None:
    """Kilobytes of noise where records were, as after a broken transfer."""
    before, after = members([response(1, BODY)]), members([response(n, numbered(n)) for n in (2, 3)])
    manifest = index(tmp_path / "out", archive(tmp_path, before + os.urandom(200_000) + after))
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(2), url(3)]
    assert manifest.outcome.reasons == {"broken_record": 1}


def test_a_page_that_holds_an_archive_adds_no_pages(tmp_path: Path) -> None:
    inside = members([response(8, BODY)]) + b"\r\n\r\n" + response(9, BODY)
    page = gzip.compress(response(1, b"<p>" + inside), compresslevel=0)  # stored: the inner bytes are there unchanged
    path = archive(tmp_path, page + members([response(2, BODY)]))
    manifest = index(tmp_path / "out", path, shard_rows=1)
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == [url(1), url(2)]


MEMORY = """
import resource, sys
from tasks.core.runner import Runner
from tasks.sources.warcs import WarcSettings, find_warcs, warcs_part
from tasks.core.storage import Folder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(file,) = find_warcs([sys.argv[1]])
outcome = warcs_part(Folder(sys.argv[2]), "part-00000", file, WarcSettings())
print(outcome.kept, dict(outcome.reasons), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


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
    kept, _, rest = done.stdout.partition(" ")
    reasons, _, grown = rest.rpartition(" ")
    assert kept == "1"
    assert "'broken_record': 2" in reasons and "'too_large': 2" in reasons
    assert int(grown) < 100 * 1024, f"{int(grown) / 1024:.0f} MB"


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


@pytest.fixture(scope="module")
def runners() -> Iterator[list[Runner]]:
    with Runner(workers=1) as one, Runner(workers=2) as two:
        yield [one, two]


@pytest.mark.slow
def test_one_and_two_workers_give_the_same_bytes(tmp_path: Path, runners: list[Runner]) -> None:
    for number in range(3):
        records = [response(10 * number + n, numbered(n)) for n in range(9)]
        archive(tmp_path, members([INFO, *records, response(99, b"")]), f"{number}.warc.gz")
    found = []
    for number, runner in enumerate(runners):
        manifest = index(tmp_path / f"out{number}", *sorted(tmp_path.glob("*.gz")), runner=runner, shard_rows=4)
        found.append((content_of(Folder(tmp_path / f"out{number}"), manifest), manifest))
    assert found[0] == found[1]
    assert manifest.outcome.kept == 27


def test_files_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"list\.warc\.gz is not a WARC: it begins with .*http.*--urls"):
        find_warcs([str(archive(tmp_path, gzip.compress(b"http://a.example/\n"), "list.warc.gz"))])
    with pytest.raises(UserError, match=r"warc\.paths\.gz is not a WARC: .* it lists archives of Common Crawl"):
        find_warcs([str(archive(tmp_path, gzip.compress(b"crawl-data/CC-MAIN-2024-10/a.warc.gz\n"), "warc.paths.gz"))])
    with pytest.raises(UserError, match=r"text\.warc\.wet\.gz holds extracted text .*--documents"):
        find_warcs([str(archive(tmp_path, members([INFO]), "text.warc.wet.gz"))])
    with pytest.raises(UserError, match=r"no file matches .*--warcs"):
        find_warcs([f"{tmp_path}/*.arc"])
    with pytest.raises(UserError, match=r"hold no page that can be used \(http_status 1\)"):
        index(tmp_path / "out", archive(tmp_path, members([response(1, BODY, status="404 gone")]), "x.warc.gz"))


def test_a_killed_step_run_again_gives_the_same_bytes(tmp_path: Path) -> None:
    for number in range(4):
        records = [response(n, numbered(n)) for n in range(300)]
        archive(tmp_path, members(records), f"{number}.warc.gz")
    files = sorted(tmp_path.glob("*.gz"))
    whole = index(tmp_path / "whole", *files)
    code = (
        "import sys; from tests.tasks.sources.test_warcs import index; from pathlib import Path; "
        "index(Path(sys.argv[1]), *map(Path, sys.argv[2:]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "out"), *map(str, files)])
    deadline = time.monotonic() + 60
    while not (tmp_path / "out/warcs/_batches/part-00000.json").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out/warcs/_manifest.json").exists()
    assert index(tmp_path / "out", *files) == whole
    assert len(pages_of(tmp_path / "out", whole)) == 1200


HOSTILE_TYPES = (
    b"text/html; charset*" + b"1" * 4400 + b"=x",
    b"text/html; charset*=%00''x",
    b"text/html;charset*;charset*0",
    b"text/html; charset=\xc3\xa9\x80",
    b"text/html; charset=\xe9\x80",
    b"text/html; charset*=utf-8''x%0d%0a%0d%0aZZZ",
)


@pytest.mark.parametrize("kind", HOSTILE_TYPES)
def test_any_media_type_is_read_without_an_exception(tmp_path: Path, kind: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n\r\n"
    data = members([response(0, BODY), record("response", 1, head + BODY), response(2, BODY)])
    manifest = index(tmp_path / "out", archive(tmp_path, data))
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (3, {})
    assert [(page.body, page.charset) for page in pages_of(tmp_path / "out", manifest)] == [
        (BODY, "utf-8"),
        (BODY, None),
        (BODY, "utf-8"),
    ]


def test_pages_without_a_media_type_are_sniffed(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    bodies = [BODY, b"\x89PNG\r\n\x1a\n" + bytes(50), b"words"]
    data = members([record("response", number, head + body) for number, body in enumerate(bodies)])
    manifest = index(tmp_path / "out", archive(tmp_path, data))
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"content_type": 2})
    (page,) = pages_of(tmp_path / "out", manifest)
    assert (page.url, page.content_type, page.body) == (url(0), "text/html", BODY)


EMPTY = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 0\r\n\r\n"
LONG = EMPTY.replace(b"Length: 0", b"Length: 100000")
BOMBS = {
    "line feeds": (EMPTY, b"\n"),
    "line feeds after a fault": (EMPTY + b"x\n", b"\n"),
    "short lines after a fault": (EMPTY + b"x\n", b"x\n"),
    "lines like a record's": (EMPTY + b"x\n", b"WARC/\n"),
    "broken records": (EMPTY + b"x\n", b"\r\n\r\nWARC/1.0\r\n\r\n"),
    "records without an end": (b"", EMPTY),
    "records with a wrong length": (b"", LONG),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_reading_time_is_proportional_to_the_decompressed_size(tmp_path: Path, kind: str, pack: Any) -> None:
    """CPU time: with quadratic cost 4 MiB took 7 s (line feeds) to 100 s (records in one member)."""
    begin, piece = BOMBS[kind]
    path = archive(
        tmp_path, pack(begin + piece * (2**22 // len(piece))), f"a.warc.{'gz' if pack is not zstd else 'zst'}"
    )
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


@given(
    st.lists(st.sampled_from([b"\n", b"\r\n", b"WARC/", b"x", b"\r", b"WAR", b"y" * 70_000]), max_size=30),
    st.booleans(),
)
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
