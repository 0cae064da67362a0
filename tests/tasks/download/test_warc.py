"""WARC files and the journal of a shard: round trip, archives of other programs, damage."""

import contextlib
import gzip
import io
import itertools
import random
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from tasks.download.journal import Journal
from tasks.download.warc import EMPTY, MEMBER, encode, encode_head, encode_record, escaped, record_name, record_spans
from tasks.sources.index import read_members, read_pages
from tests.tasks.warc_pages import make_page, write_pages

Http = tuple[str, list[tuple[str, str]]] | None


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_pages_round_trip(tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("warc")
    pages = [make_page(body, url=f"http://a.example/{number}") for number, body in enumerate(bodies)]
    assert write_pages(folder / "p.warc.gz", pages) == len(pages)
    assert list(read_pages(Folder(folder), "p.warc.gz")) == pages
    assert list(map(encode_record, pages)) == list(map(encode_record, pages))  # bytes depend on the page alone


FIELD = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def by_warcio(kind: str, uri: str, payload: bytes, name: str, fields: dict[str, str], content_type: str, http: Http):
    """The record that warcio's writer writes: the reference of `encode`."""
    buffer, options = io.BytesIO(), {"warc_content_type": content_type}
    if http is not None:
        options["http_headers"] = StatusAndHeaders(http[0], list(http[1]), protocol="HTTP/1.1")
    writer = WARCWriter(buffer, gzip=False, warc_version="1.1")
    head = {"WARC-Record-ID": record_name(name)} | {field: escaped(value) for field, value in fields.items()}
    stream = io.BytesIO(payload)
    writer.write_record(
        writer.create_warc_record(escaped(uri), kind, stream, length=len(payload), warc_headers_dict=head, **options)
    )
    return buffer.getvalue()


@given(
    st.sampled_from(["response", "revisit", "warcinfo"]),
    FIELD,
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(["X-List-URL", "WARC-Filename", "WARC-IP-Address"]), FIELD),
    st.lists(st.tuples(st.sampled_from(["ETag", "Content-Type", "Vary"]), FIELD.map(escaped)), max_size=3),
)
def test_records_are_those_of_warcio(
    kind: str, uri: str, payload: bytes, fields: dict[str, str], headers: list[tuple[str, str]]
) -> None:
    fields |= {"WARC-Date": "2026-01-02T03:04:05Z", "WARC-Payload-Digest": "sha256:00"}
    http = None if kind == "warcinfo" else ("200 OK", headers)
    payload = b"" if kind == "revisit" else payload
    arguments = (kind, uri, payload, "name", fields, "application/x", http)
    assert gzip.decompress(encode(*arguments)) == by_warcio(*arguments)


@given(st.lists(st.binary(max_size=60), max_size=4), st.integers(0, 3), st.integers(0, 400))
def test_members_are_read_as_pages(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], taken: int, damage: int
) -> None:
    """Known records are replaced; after one that is damaged, the pages and faults are those of `read_pages`."""
    folder = tmp_path_factory.mktemp("warc")
    noise = random.Random(1).randbytes(40_000)  # stored as it is
    bodies = [noise + MEMBER + body if number % 2 else body for number, body in enumerate(bodies)]
    write_pages(folder / "p.warc.gz", [make_page(body, url=f"http://a.example/{n}") for n, body in enumerate(bodies)])
    root, nothing = Folder(folder), dict[bytes, int]()
    whole = list(read_members(root, "p.warc.gz", nothing.get))
    assert [page for _, page in whole] == list(read_pages(root, "p.warc.gz"))
    known = {member: number for number, (member, _) in enumerate(whole) if member is not None and number % 4 == taken}
    found = [one for _, one in read_members(root, "p.warc.gz", known.get)]
    assert found == [known.get(member, page) for member, page in whole]
    data = bytearray((folder / "p.warc.gz").read_bytes())
    data[damage % len(data)] ^= 0xFF
    (folder / "p.warc.gz").write_bytes(data)
    assert [page for _, page in read_members(root, "p.warc.gz", nothing.get)] == list(read_pages(root, "p.warc.gz"))


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.integers(0, 3000))
def test_spans_are_those_of_warcio_and_show_damage(bodies: list[bytes], at: int) -> None:
    parts = [encode_head("p", "2026-01-02T03:04:05Z"), *(encode_record(make_page(body)) for body in bodies), EMPTY]
    data = b"".join(parts)

    def spans(data: bytes) -> list[tuple[str | None, int, int]]:
        found = record_spans(io.BytesIO(data))
        return [(span.head.get_header("WARC-Record-ID"), span.offset, span.length) for span in found]

    archive, expected = ArchiveIterator(io.BytesIO(data)), []
    for record in archive:
        archive.read_to_end(record)
        name = record.rec_headers.get_header("WARC-Record-ID")
        expected.append((name, archive.get_record_offset(), archive.get_record_length()))
    assert spans(data) == expected and len(expected) == len(bodies) + 1
    at %= len(data)
    with contextlib.suppress(ValueError, EOFError, zlib.error):
        flipped = spans(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        assert flipped == expected  # no checksum covers the fields of a gzip header
    if at and at not in itertools.accumulate(map(len, parts)):
        with pytest.raises(EOFError, match="it ends within the record"):
            spans(data[:at])
    with pytest.raises(ValueError, match="no whole record at byte 0"):
        spans(gzip.compress(gzip.decompress(data)))


def test_records_have_the_fields_of_the_standard(tmp_path: Path) -> None:
    page = make_page(b"<p>x", ip="192.0.2.7", content_language="de, en")
    data = encode_head("p.warc.gz", page.fetched_at) + encode_record(page)
    (tmp_path / "p.warc.gz").write_bytes(data)
    assert list(read_pages(Folder(tmp_path), "p.warc.gz")) == [page]
    with (tmp_path / "p.warc.gz").open("rb") as file:
        fields = []
        for record in ArchiveIterator(file, check_digests="raise"):
            record.content_stream().read()
            fields.append({name: record.rec_headers.get_header(name) for name, _ in record.rec_headers.headers})
    head, response = fields
    assert (head["WARC-Type"], head["WARC-Filename"]) == ("warcinfo", "p.warc.gz")
    assert response["WARC-Block-Digest"].startswith("sha1:")
    expected = {
        **{"WARC-Type": "response", "Content-Type": "application/http; msgtype=response"},
        **{"WARC-Target-URI": page.final_url, "X-List-URL": page.url, "WARC-IP-Address": "192.0.2.7"},
        **{"WARC-Date": page.fetched_at, "WARC-Payload-Digest": f"sha256:{page.sha256}"},
    }
    assert response == response | expected
    for found in fields:  # ids are of the content, not drawn
        assert re.fullmatch(r"<urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f-]{21}>", found["WARC-Record-ID"])
    assert encode_head("p.warc.gz", page.fetched_at) == data[: len(encode_head("p.warc.gz", page.fetched_at))]


def test_an_archive_of_another_program_is_read(tmp_path: Path) -> None:
    """As Common Crawl writes them: a request beside the response, compressed bodies, other types."""
    with (tmp_path / "cc.warc.gz").open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        answers = (
            ("200 OK", "text/html; charset=ISO-8859-1", "<p>é".encode("latin-1")),
            ("404 Not Found", "text/html", b"gone"),
            ("200 OK", "image/png", b"\x89PNG"),
        )
        for number, (status, kind, body) in enumerate(answers):
            uri, fields = f"http://c.example/{number}", [("Content-Type", kind), ("Content-Encoding", "gzip")]
            head = StatusAndHeaders(status, fields, protocol="HTTP/1.1")
            request = io.BytesIO(b"GET / HTTP/1.1\r\nHost: c.example\r\n\r\n")
            writer.write_record(writer.create_warc_record(uri, "request", request))
            payload = io.BytesIO(gzip.compress(body))
            writer.write_record(writer.create_warc_record(uri, "response", payload, http_headers=head))
    (page,) = read_pages(Folder(tmp_path), "cc.warc.gz")
    assert (page.url, page.final_url, page.source) == ("http://c.example/0", "http://c.example/0", "cc.warc.gz")
    assert (page.body, page.content_type, page.charset) == (b"<p>\xe9", "text/html", "iso-8859-1")


def test_a_truncated_journal_keeps_its_complete_records(tmp_path: Path) -> None:
    urls = [f"http://a.test/{n}" for n in range(3)]
    records = [gzip.compress(b"page" * n) for n in (1, 2)]
    with Journal(tmp_path / "j", "key", urls) as journal:
        journal.add(2, {"url": urls[2]}, records[0])
        journal.add(0, {"url": urls[0]}, b"")
        journal.add(1, {"url": urls[1]}, records[1])
    rows, pages = (tmp_path / "j.rows").read_bytes(), (tmp_path / "j.pages").read_bytes()
    ends = [rows.index(b"\n") + 1]
    while ends[-1] < len(rows):
        ends.append(rows.index(b"\n", ends[-1]) + 1)
    orders = [set(), {2}, {2, 0}, {2, 0, 1}]
    for cut in sorted({0, *ends, *(end - 1 for end in ends), *range(1, len(rows), 9)}):
        (tmp_path / "j.rows").write_bytes(rows[:cut])
        (tmp_path / "j.pages").write_bytes(pages)
        with Journal(tmp_path / "j", "key", urls) as journal:
            assert journal.done == orders[max(0, sum(end <= cut for end in ends) - 1)]
            for index in {0, 1, 2} - journal.done:
                journal.add(index, {"url": urls[index]}, records[0])
            found = journal.rows()
            assert [row["url"] for row, _, _ in found] == urls
            assert all(gzip.decompress(journal.page(*at) or gzip.compress(b"")) is not None for _, *at in found)
    (tmp_path / "j.rows").write_bytes(rows)
    (tmp_path / "j.pages").write_bytes(pages[:-1])  # as after a power cut: the row is there, its page is not
    with Journal(tmp_path / "j", "key", urls) as journal:
        assert journal.done == {2, 0}
    for key, other in (("else", urls), ("key", urls[::-1])):
        with Journal(tmp_path / "j", key, other) as journal:
            assert journal.done == set()


def test_a_full_disk_is_one_error_line(tmp_path: Path) -> None:
    (tmp_path / "j.pages").symlink_to("/dev/full")
    with (
        pytest.raises(RunError, match=r"no space left while writing .*j\.pages: free some"),
        Journal(tmp_path / "j", "key", ["http://a/"]) as journal,
    ):
        journal.add(0, {}, b"a page")
