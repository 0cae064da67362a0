"""The extract step: pages to documents, and a pool that survives adversarial pages."""

import dataclasses
import gzip
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.clean.settings import CleanSettings
from tasks.core.document import document_id
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.core.step import Step
from tasks.core.worker_pool import WorkerPool
from tasks.download.warc import Page
from tasks.extract.page import extract_pages
from tasks.extract.settings import ExtractOptions, ExtractResult, ExtractSettings
from tasks.extract.step import ENGINE_VERSIONS, extract, extract_group, extracted
from tests.tasks.warc_pages import write_pages

GROWN: list[bytearray] = []
PARAGRAPH = "The library waits for the reply of the server, and it gives up when the reply does not come in time. "
ARTICLE = f"<html><head><title> A  title\n</title></head><body><article><p>{PARAGRAPH * 4}</p></article></body></html>"


def page(body: bytes, url: str = "http://a.example/x", charset: str | None = None) -> Page:
    return Page(url, url, "text/html", charset, body, "2026-01-01T00:00:00Z", hashlib.sha256(body).hexdigest(), "list")


def answer(pages: Sequence[Page], options: ExtractOptions) -> list[ExtractResult]:
    """The extraction, but for pages that do to their worker what hostile pages do."""
    bodies = b" ".join(page.body for page in pages)
    if b"DIE" in bodies:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"HANG" in bodies:
        time.sleep(600)
    if b"STOP" in bodies:
        os.kill(os.getpid(), signal.SIGSTOP)
    for times in re.findall(rb"BURN(\d+)", bodies):  # one call of C code that Python cannot interrupt
        hashlib.pbkdf2_hmac("sha1", b"a", b"b", int(times))
    if b"RAISE" in bodies:
        raise RecursionError("too deep")
    found = extract_pages(pages, options)
    if b"GROW" in bodies:
        GROWN.append(bytearray(b"x") * (100 * 2**20))
    return found


class HostilePool(WorkerPool):
    """A real pool whose workers meet hostile pages."""

    def submit(self, function: Any, *args: Any, **limits: Any) -> "Future[Any]":
        return super().submit(answer if function is extract_group else function, *args, **limits)


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


def test_metadata_is_stored_with_the_text(tmp_path: Path, runner: Runner) -> None:
    dated = ARTICLE.replace("<head>", "<head><meta property='article:published_time' content='2019-03-04T05:06Z'>")
    first = page(dated.replace("<html>", "<html lang='en-GB'>").encode())
    second = dataclasses.replace(page(ARTICLE.encode()), content_language="de, en")
    manifest = extract(Folder(tmp_path), download(Folder(tmp_path), [first, second]), ExtractSettings(), runner)
    rows = [row for record in manifest.outputs for row in read_rows(Folder(tmp_path) / "documents", record.name)]
    assert [(row["title"], row["date"], row["language_hint"]) for row in rows] == [
        ("A title", "2019-03-04", "en"),
        ("A title", None, "de"),
    ]


def test_the_version_of_one_engine_does_not_redo_the_outputs_of_the_other(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    pages = download(root, [page(ARTICLE.encode())])
    made = [extract(root, pages, ExtractSettings(engine=engine), runner) for engine in ("structure", "trafilatura")]
    assert [one.parameters["engine_version"] for one in made] == [ENGINE_VERSIONS[name] for name in ENGINE_VERSIONS]


@pytest.fixture
def hostile() -> Iterator[HostilePool]:
    pool = HostilePool(workers=1)
    yield pool
    pool.close()


def test_a_page_that_kills_its_worker_costs_no_other_page(hostile: HostilePool) -> None:
    good = [page(ARTICLE.encode(), f"http://a.example/{n}") for n in range(3)]
    pages = [good[0], page(b"DIE"), good[1], page(b"RAISE"), good[2]]
    os.kill(hostile.call(os.getpid), signal.SIGKILL)  # between two calls
    found = [one for _, one in extracted(hostile, pages, ExtractOptions())]
    assert [one.reason for one in found] == [None, "extract_crashed", None, "extract_crashed", None]
    assert found[3].detail == "RecursionError on 5 bytes: too deep"
    assert "exit code -9" in found[1].detail


@pytest.mark.parametrize("body", [b"HANG", pytest.param(b"STOP", marks=pytest.mark.exhaustive)])
def test_a_worker_that_hangs_without_cpu_time_is_killed(
    hostile: HostilePool, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr("tasks.extract.step.WALL_CLOCK_FACTOR", 0.05)
    [(_, found)] = extracted(hostile, [page(body)], ExtractOptions())
    assert found.reason == "extract_timeout"
    assert found.detail == "no text from 4 bytes after 1.5 s, in which the worker used less than 30 s of CPU time"
    [(_, found)] = extracted(hostile, [page(ARTICLE.encode())], ExtractOptions(deadline=1200))
    assert found.reason is None


def test_a_page_that_exceeds_its_cpu_time_is_rejected(hostile: HostilePool) -> None:
    pages = [page(ARTICLE.encode()), page(b"BURN2000000000"), page(ARTICLE.encode())]
    found = [one for _, one in extracted(hostile, pages, ExtractOptions(deadline=1))]
    assert [one.reason for one in found] == [None, "extract_timeout", None]
    assert found[1].detail == "no text from 14 bytes after 1 s of CPU time"


@pytest.mark.parametrize(
    "burns", [pytest.param(False, marks=pytest.mark.exhaustive), pytest.param(True, marks=pytest.mark.exhaustive)]
)
def test_a_busy_machine_changes_no_result(hostile: HostilePool, burns: bool) -> None:
    """Four busy processes beside a page that needs half of the deadline, and thrice the deadline by the wall clock."""
    deadline = 1.2
    begun = time.process_time()
    hashlib.pbkdf2_hmac("sha1", b"a", b"b", 200_000)
    half = int(200_000 * deadline / 2 / (time.process_time() - begun))
    pages = [page(f"{ARTICLE}<!-- BURN{half} -->".encode()), page(b"BURN2000000000")][: 1 + burns]
    cores = os.sched_getaffinity(0)
    busy: list[subprocess.Popen[bytes]] = []
    try:
        os.sched_setaffinity(0, sorted(cores)[:1])  # inherited: the worker and the busy processes share one core
        list(extracted(hostile, [page(ARTICLE.encode())], ExtractOptions(deadline=60)))  # the worker has started
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
        started = time.monotonic()
        found = [one.reason for _, one in extracted(hostile, pages, ExtractOptions(deadline=deadline))]
        assert time.monotonic() - started > deadline
    finally:
        os.sched_setaffinity(0, cores)
        for process in busy:
            process.kill()
            process.wait()
    assert found == [None, "extract_timeout"][: 1 + burns]


def test_a_worker_that_has_grown_is_replaced_and_no_page_is_lost(hostile: HostilePool) -> None:
    pages = [page(ARTICLE.replace("library", word).encode()) for word in ("library", "GROW", "archive")]
    options = ExtractOptions(worker_recycle_mb=64)
    workers = [hostile.call(os.getpid)]
    for one in pages:  # the second page grows the worker, which the third call finds too large
        [(_, found)] = extracted(hostile, [one], options)
        assert found.reason is None
        workers.append(hostile.call(os.getpid))
    assert workers[0] == workers[1] == workers[2] != workers[3]


def test_a_page_that_needs_too_much_memory_is_rejected(runner: Runner) -> None:
    pages = [page(b"<p>a" * 3_000_000), page(ARTICLE.encode())]
    found = [one for _, one in extracted(runner.pool, pages, ExtractOptions(memory_mb=256))]
    assert found[0].reason == "extract_crashed"
    assert found[0].detail.startswith("MemoryError")
    assert found[1].reason is None


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_grouping_of_pages_changes_nothing(runner: Runner, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    pages = [page(ARTICLE.replace("library", f"library {n}").encode(), f"http://a.example/{n}") for n in range(7)]
    monkeypatch.setattr("tasks.extract.step.GROUP_PAGES", size)
    found = list(extracted(runner.pool, pages, ExtractOptions()))
    assert [row.url for row, _ in found] == [one.url for one in pages]
    assert [f"library {n}" in one.text for n, (_, one) in enumerate(found)] == [True] * 7


def test_a_broken_installation_stops_the_step(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    pages = download(root, [page(b"RAISE", f"http://a.example/{n}") for n in range(30)])
    with Runner(workers=1) as runner:
        runner._pool = HostilePool(workers=1)
        with pytest.raises(RunError, match="failed on 30 of 30 pages, most often: RecursionError"):
            extract(root, pages, ExtractSettings(), runner)


def test_pages_that_cleaning_would_drop_are_not_extracted(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    long = ARTICLE.replace(PARAGRAPH, PARAGRAPH * 10)
    pages = download(
        root, [page(ARTICLE.encode(), "http://a.example/short"), page(long.encode(), "http://a.example/long")]
    )
    short = extract(root, pages, ExtractSettings(), runner, clean=CleanSettings(min_tokens=400))
    assert short.outcome.reasons == {"early_short": 1}
    assert short.parameters["wanted"] == {"min_tokens": 400, "languages": ["en"], "share": 0.1}
    both = extract(root, pages, ExtractSettings(prefilter=False), runner, clean=CleanSettings(min_tokens=400))
    assert (both.outcome.kept, both.parameters["wanted"]) == (2, None)
    # Without early rejection nothing of the cleaning is in the fingerprint; with it, what decides is.
    assert extract(root, pages, ExtractSettings(prefilter=False), runner, clean=CleanSettings()) == both
    assert extract(root, pages, ExtractSettings(), runner, clean=CleanSettings()).fingerprint != short.fingerprint


def test_compressed_bodies_are_not_decompressed() -> None:
    bomb = gzip.compress(b"<p>" + b"word " * 2_000_000 + b"</p>")
    assert extract_pages([page(bomb)], ExtractOptions())[0].reason in ("undecodable", "no_text")
