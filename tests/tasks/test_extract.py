"""Bytes to text, and a pool that outlives its pages."""

import gzip
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import trafilatura
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import RunError
from tasks.download.warc import Page, write_pages
from tasks.extract import ExtractSettings, document_id, extract, extracted
from tasks.html import Extracted, codec_name, decode, extract_text, storable
from tasks.pool import WorkerPool
from tasks.runner import Runner
from tasks.shards import read_rows
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

PARAGRAPH = "The library waits for the reply of the server, and it gives up when the reply does not come in time. "
ARTICLE = f"<html><head><title> A  title\n</title></head><body><article><p>{PARAGRAPH * 4}</p></article></body></html>"


def page(body: bytes, url: str = "http://a.example/x", charset: str | None = None) -> Page:
    return Page(url, url, "text/html", charset, body, "2026-01-01T00:00:00Z", hashlib.sha256(body).hexdigest(), "list")


def answer(body: bytes, *args: Any) -> Extracted:
    """The extraction, but for pages that do to their worker what hostile pages do."""
    if b"DIE" in body:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"HANG" in body:
        time.sleep(600)
    if b"RAISE" in body:
        raise RecursionError("too deep")
    return extract_text(body, *args)


class HostilePool(WorkerPool):
    """A real pool whose workers meet hostile pages."""

    def submit(self, function: Any, *args: Any, timeout: float | None = None) -> "Future[Any]":
        return super().submit(answer, *args, timeout=timeout)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(workers=2) as runner:
        yield runner


def download(root: Folder, *shards: list[Page]) -> Manifest:
    step = Step(root, "download", version=1, parameters={}, inputs={}, folder="pages")
    records = []
    for number, pages in enumerate(shards):
        name = f"part-{number:05d}.warc.gz"
        with step.folder.writing(name) as draft:
            write_pages(draft, pages)
        records.append(step.folder.record(name, rows=len(pages)))
    return step.commit(Outcome(outputs=tuple(records)))


def test_pages_become_documents_in_order(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    bodies = [ARTICLE.replace("library", f"library {n}").encode() for n in range(12)]
    pages = [page(body, f"http://a.example/{n}") for n, body in enumerate(bodies)]
    pages.insert(5, page(b"<html><body></body></html>", "http://a.example/empty"))
    pages.insert(7, page(bytes(range(1, 9)) * 40, "http://a.example/binary"))
    manifest = extract(root, download(root, pages[:9], pages[9:]), ExtractSettings(), runner)
    rows = [row for record in manifest.outputs for row in read_rows(root / "documents", record.name)]
    assert [row["url"] for row in rows] == [f"http://a.example/{n}" for n in range(12)]
    assert all(row["title"] == "A title" and row["source"] == "list" for row in rows)
    assert rows[3]["id"] == document_id("http://a.example/3", rows[3]["text"])
    assert len({row["id"] for row in rows}) == 12
    assert manifest.outcome.reasons == {"no_text": 1, "undecodable": 1}
    assert manifest.outcome.seen == 14
    assert extract(root, download(root, pages[:9], pages[9:]), ExtractSettings(), runner) == manifest


@pytest.fixture
def hostile() -> Iterator[HostilePool]:
    pool = HostilePool(workers=1)
    yield pool
    pool.close()


def test_a_poison_page_costs_itself_alone(hostile: HostilePool) -> None:
    good = [page(ARTICLE.encode(), f"http://a.example/{n}") for n in range(3)]
    found = list(extracted(hostile, [good[0], page(b"DIE"), good[1], page(b"RAISE"), good[2]], ExtractSettings()))
    assert [one.reason for _, one in found] == [None, "extract_crashed", None, "extract_crashed", None]
    assert found[3][1].detail == "RecursionError on 5 bytes: too deep"
    assert "exit code -9" in found[1][1].detail


def test_a_hanging_page_is_given_up(hostile: HostilePool) -> None:
    [(_, hung)] = extracted(hostile, [page(b"HANG")], ExtractSettings(deadline=0.5))
    assert (hung.reason, hung.detail) == ("extract_timeout", "no text from 4 bytes after 0.5 s")
    [(_, next_one)] = extracted(hostile, [page(ARTICLE.encode())], ExtractSettings())
    assert next_one.reason is None


def test_a_page_that_needs_too_much_memory_is_refused(runner: Runner) -> None:
    pages = [page(b"<p>hello world</p>" * 400_000), page(ARTICLE.encode())]
    found = [one for _, one in extracted(runner.pool, pages, ExtractSettings(memory_mb=256))]
    assert found[0].reason == "extract_crashed"
    assert found[0].detail.startswith("MemoryError")
    assert found[1].reason is None


def test_a_broken_installation_stops_the_step(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    pages = download(root, [page(b"RAISE", f"http://a.example/{n}") for n in range(30)])
    with Runner(workers=1) as runner:
        runner._pool = HostilePool(workers=1)
        with pytest.raises(RunError, match="failed on 30 of 30 pages, most often: RecursionError"):
            extract(root, pages, ExtractSettings(), runner)


def test_text_is_what_trafilatura_gives_on_real_pages(real_data: Path, tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(real_data / "html_gold" / "scrapinghub.tar.xz") as archive:
        members = [member for member in archive.getmembers() if member.name.endswith((".html", ".htm"))][:12]
        bodies = [archive.extractfile(member).read() for member in members]  # type: ignore[union-attr]
    assert len(bodies) == 12
    for body in bodies:
        theirs = trafilatura.extract(body, include_comments=False)
        ours = extract_text(body, None, "http://a.example/")
        assert ours.text == storable(theirs or "").strip()


def test_archives_in_a_body_are_not_unpacked() -> None:
    bomb = gzip.compress(b"<p>" + b"word " * 2_000_000 + b"</p>")
    assert extract_text(bomb, None, "http://a.example/").reason in ("undecodable", "no_text")


@pytest.mark.parametrize(
    ("text", "encoding", "charset", "meta"),
    [
        ("naïve café — “quoted”", "utf-8", None, None),
        ("naïve café — “quoted”", "utf-8", "iso-8859-1", None),  # a server's wrong default
        ("naïve café — “quoted”", "cp1252", "iso-8859-1", None),  # as browsers read Latin-1
        ("naïve café — “quoted”", "cp1252", None, "windows-1252"),
        ("naïve café — “quoted”", "utf-8-sig", "cp1252", None),
        ("naïve café — “quoted”", "utf-16", "cp1252", None),
        ("naïve café — “quoted”", "utf-16-le", "utf-16le", None),
        ("Ελληνικά κείμενα", "iso8859_7", None, "ISO-8859-7"),
        ("Русский текст", "koi8_r", "KOI8-R", "utf-8"),
        ("日本語の文章", "iso2022_jp", "iso-2022-jp", None),
        ("日本語の文章", "shift_jis", None, "shift_jis"),
        ("한국어 문서입니다", "euc_kr", "euc-kr", None),
    ],
)
def test_encodings(text: str, encoding: str, charset: str | None, meta: str | None) -> None:
    tag = f'<meta charset="{meta}">' if meta else ""
    assert decode(f"{tag}<p>{text}</p>".encode(encoding), charset)[0] == f"{tag}<p>{text}</p>"


def test_an_undeclared_encoding_is_detected() -> None:
    text = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 20
    assert decode(text.encode("cp1251"))[0] == text


@pytest.mark.parametrize(
    "label", [None, "", "none", "x-unknown", "base64", "rot13", "zip", "idna", "undefined", "a\0b"]
)
def test_labels_that_name_no_text_encoding(label: str | None) -> None:
    assert codec_name(label) is None


@given(st.binary(max_size=300), st.none() | st.text(max_size=20) | st.sampled_from(["utf-16", "utf-7", "gbk", "hz"]))
def test_decoding_never_fails(body: bytes, charset: str | None) -> None:
    text, encoding = decode(body, charset)
    assert isinstance(text, str)
    assert encoding


@given(st.text(st.characters()) | st.text(st.sampled_from("a\0\ud800\udfff\U0001f600")))
def test_storable_text_can_be_stored(text: str) -> None:
    kept = storable(text)
    kept.encode()
    assert "\0" not in kept
    assert storable(kept) == kept
