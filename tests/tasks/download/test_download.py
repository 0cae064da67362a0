"""The download step against a server on loopback: order, reproducible content, kills, retries, constant memory."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder
from tasks.core.runner import Runner, Stage
from tasks.core.shards import read_rows
from tasks.download.host_stats import tally_hosts
from tasks.download.ledger import ledgers_of
from tests.processes import wait_for
from tests.tasks.corpus import Inline, rejected_of
from tests.tasks.download.fetch_helpers import ledger_of, make_urls, pages_of, run, run_again
from tests.tasks.web_server import Site, drip, ok


def test_pages_are_in_the_order_of_the_list(site: Site, tmp_path: Path) -> None:
    def slow_first(h: Any) -> None:
        time.sleep(0.3)
        h.answer(b"<p>slow")

    site.handlers["/slow"] = slow_first
    root = Folder(tmp_path)
    shards = [["http://a.test/slow", "http://a.test/gone", "http://a.test/2"], ["http://a.test/image"]]
    manifest = run(root, site, shards)
    pages = pages_of(root, manifest)
    assert [page.url for page in pages] == ["http://a.test/slow", "http://a.test/2"]
    assert {page.source for page in pages} == {"list.txt"}
    ledger = ledger_of(root, manifest)
    assert [row["url"] for row in ledger] == [url for shard in shards for url in shard]
    assert [row["status"] for row in ledger] == ["ok", "failed", "ok", "failed"]
    assert [row["sha256"] for row in ledger if row["sha256"]] == [page.sha256 for page in pages]
    assert [row["reason"] for row in rejected_of(root, manifest)] == ["not_found", "content_type"]
    assert manifest.outcome.reasons == {"content_type": 1, "not_found": 1}
    assert (manifest.outcome.seen, manifest.outcome.kept) == (4, 2)
    assert site.hits["a.test", "/robots.txt"] == 1  # once for both shards


class ProgressRunner(Runner):
    def __init__(self) -> None:
        super().__init__()
        self.stages: list[dict[str, int]] = []
        self.advances: dict[str, list[tuple[int, int]]] = {}

    def dispatch(self, stage: Stage, *args: Any) -> None:
        self.stages.append(dict(stage.rows))
        super().dispatch(stage, *args)

    def advance(self, name: str, done: int, rows: int) -> None:
        self.advances.setdefault(name, []).append((done, rows))


def test_a_shard_reports_its_progress(site: Site, tmp_path: Path) -> None:
    def slow(h: Any) -> None:
        first = len(runner.stages) == 1
        if first:
            wait_for(lambda: (1, 2) in runner.advances.get("part-00000", ()), 60, "the progress")
        h.answer(b"", status=503 if first else 200)

    site.handlers["/slow"] = slow
    root = Folder(tmp_path)
    make_urls(root, [["http://a.test/1", "http://b.test/slow"], ["http://a.test/2"]])
    with ProgressRunner() as runner:
        run_again(root, site.address, runner, attempts=1)
        assert runner.stages == [{"part-00000": 2, "part-00001": 1}]
        assert (1, 2) in runner.advances["part-00000"] and runner.advances["part-00000"][-1] == (2, 2)
        assert runner.advances["part-00001"][-1] == (1, 1)
        run_again(root, site.address, runner, retry_failed=True, attempts=1)
        assert runner.stages[1:] == [{"retry-00000": 1}] and runner.advances["retry-00000"][-1] == (1, 1)


def test_content_does_not_depend_on_timing_or_workers(site: Site, tmp_path: Path) -> None:
    shards = [[f"http://h{n}.test/{m}" for m in range(3)] for n in range(3)]
    first = run(Folder(tmp_path / "a"), site, shards)
    time.sleep(1.1)  # WARC dates are whole seconds
    second = run(Folder(tmp_path / "b"), site, shards, workers=2)
    assert first.identity == second.identity
    assert [r.sha256 for r in first.outputs] != [r.sha256 for r in second.outputs]
    site.handlers["/2"] = lambda h: h.answer(b"<p>changed")
    third = run(Folder(tmp_path / "c"), site, shards)
    assert third.fingerprint == first.fingerprint
    assert third.content != first.content


def test_a_download_without_any_page_is_an_error_and_not_cached(site: Site, tmp_path: Path) -> None:
    site.handlers["/x"] = site.handlers["/broken"]
    with pytest.raises(RunError, match=r"none of the 1 pages could be fetched \(http_error 1\)"):
        run(Folder(tmp_path), site, [["http://a.test/x"]])
    del site.handlers["/x"]
    assert run(Folder(tmp_path), site, [["http://a.test/x"]]).outcome.kept == 1
    with pytest.raises(RunError, match=r"\(not_public_address 1\); add networks .* download\.allow_private"):
        run(Folder(tmp_path / "private"), site, [["http://a.test/x"]], allow_private=())


def test_a_stopped_download_ends_soon(site: Site, tmp_path: Path) -> None:
    runner = Runner(1)
    whole: list[bool] = []
    site.handlers["/stops"] = lambda h: (runner.stopping.set(), drip(h), whole.append(True))[1]
    make_urls(Folder(tmp_path), [["http://a.test/stops"]])
    with pytest.raises(RunError, match="run again"):
        run_again(Folder(tmp_path), site.address, runner, deadline=600)
    assert not whole  # the page takes 50 s


CHILD = """
import sys
from tests.tasks.download.test_download import crawl
print(crawl(sys.argv[1], sys.argv[2]))
"""


def crawl(root: str, address: str) -> str:
    with Runner(1) as runner:
        return str(run_again(Folder(root), address, runner, delay=0.05).identity)


def test_a_killed_download_resumes(site: Site, tmp_path: Path) -> None:
    """kill -9 in the midst of the shards: what was fetched is not asked for again, and the content is the same."""
    straight, root = str(tmp_path / "straight"), str(tmp_path / "killed")
    for folder in (straight, root):
        make_urls(Folder(folder), [[f"http://a.test/{shard}-{n}" for n in range(9)] for shard in range(2)])
    expected = crawl(straight, site.address)
    site.hits.clear()
    killed = threading.Event()
    site.handlers["/1-3"] = lambda _: killed.wait(60)  # no page follows before the kill
    victim = subprocess.Popen([sys.executable, "-c", CHILD, root, site.address])
    while not site.hits["a.test", "/1-3"]:
        time.sleep(0.01)
        assert victim.poll() is None
    victim.kill()
    victim.wait()
    killed.set()
    del site.handlers["/1-3"]
    assert not (tmp_path / "killed" / "pages" / "_manifest.json").exists()
    assert site.hits["a.test", "/1-8"] == 0
    assert crawl(root, site.address) == expected
    pages = Counter({path: count for (_, path), count in site.hits.items() if path != "/robots.txt"})
    assert len(pages) == 18
    assert pages.total() <= 19  # the one that was in flight may be asked for again
    assert not (tmp_path / "killed" / "pages" / "_journal").exists()


def test_hosts_are_counted_apart(site: Site, tmp_path: Path) -> None:
    one = ["http://a.test/1", "http://a.test/gone", "http://b.test/broken"]
    manifest = run(Folder(tmp_path), site, [one, ["http://A.test/2", "http://b.test/gone"]], attempts=1)
    folder = Folder(tmp_path) / "pages"
    (record,) = [record for record in manifest.outcome.audit if record.name == "hosts.parquet"]
    rows = list(read_rows(folder, record.name))
    assert [(r["host"], r["urls"], r["ok"], r["failed"], r["top_reason"]) for r in rows] == [
        ("b.test", 2, 0, 2, "http_error"),
        ("a.test", 3, 2, 1, "not_found"),
    ]
    bounded = tally_hosts(folder, ledgers_of(manifest.outcome.audit), max_hosts=1).to_pylist()
    assert [(row["host"], row["urls"], row["failed"]) for row in bounded] == [("b.test", 2, 2), ("(other hosts)", 3, 1)]


HEAVY = """
import resource, sys
from gpt2train.store.folder import Folder
from tests.tasks.download.fetch_helpers import run_again
manifest = run_again(Folder(sys.argv[1]), sys.argv[2], per_host=4, max_wire_bytes=2**20)
print(manifest.outcome.kept, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_pages(site: Site, tmp_path: Path) -> None:
    """200 MB of pages in two shards: the process stays within 100 MB of one that fetches two pages."""
    site.handlers["/large"] = lambda h: h.answer(b"<p>" + os.urandom(400_000), "text/html")

    def peak(pages: int) -> int:
        shards = [[f"http://h{n % 16}.test/large?{shard}-{n}" for n in range(pages)] for shard in range(2)]
        root = tmp_path / str(pages)
        make_urls(Folder(root), shards)
        command = [sys.executable, "-c", HEAVY, str(root), site.address]
        kept, mib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert int(kept) == 2 * pages
        return int(mib)

    assert peak(250) - peak(1) < 100


def test_only_retryable_urls_are_fetched_again(site: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    site.handlers["/flaky"] = site.handlers["/broken"]
    on_a = [f"http://a.test/{name}" for name in ("1", "flaky", "gone", "2")]
    shards = [on_a[:3], on_a[3:], ["http://b.test/flaky"]]
    first = run(root, site, shards)
    assert first.outcome.reasons == {"http_error": 2, "not_found": 1}
    before = {name: (root / "pages").read_bytes(name) for name in (root / "pages").files()}

    site.hits.clear()
    assert run_again(root, site.address) == first
    assert not site.hits

    def heals_on_a(h: Any) -> None:
        ok(h) if h.headers["Host"] == "a.test" else h.answer(b"", status=500)

    site.handlers["/flaky"] = heals_on_a
    runner = Inline(1)
    second = run_again(root, site.address, runner, retry_failed=True)
    assert "download" not in runner.skipped
    assert {path for _, path in site.hits} == {"/robots.txt", "/flaky"}
    assert (second.fingerprint, second.outcome.kept) == (first.fingerprint, 3)
    assert second.content != first.content
    assert second.outcome.reasons == {"http_error": 1, "not_found": 1}
    assert [page.url for page in pages_of(root, second)] == [*on_a[:2], on_a[3]]
    assert [row["reason"] for row in ledger_of(root, second)] == ["", "", "not_found", "", "http_error"]
    assert [row["url"] for row in rejected_of(root, second)] == ["http://a.test/gone", "http://b.test/flaky"]
    assert (root / "pages").read_bytes("part-00001.warc.gz") == before["part-00001.warc.gz"]
    assert set((root / "pages").files()) == {"_manifest.json", *(record.name for record in second.outcome.files)}

    # The new state is what a run without the option finds done, and what the next round starts from.
    assert run_again(root, site.address) == second
    site.handlers["/flaky"] = ok
    third = run_again(root, site.address, retry_failed=True)
    assert (third.outcome.kept, third.outcome.reasons) == (4, {"not_found": 1})
    assert "part-00002.retry-2.warc.gz" in [record.name for record in third.outputs]
    site.hits.clear()
    runner = Inline(1)
    assert run_again(root, site.address, runner, retry_failed=True) == third
    assert runner.skipped == {"download"} and not site.hits


def test_an_interrupted_retry_leaves_the_download_complete(site: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    site.handlers["/flaky"] = site.handlers["/broken"]
    first = run(root, site, [["http://a.test/1", "http://a.test/flaky"], ["http://a.test/flaky?2"]])
    site.handlers["/flaky"] = ok

    class Cut(Exception):
        pass

    def cut(*_: object, **__: object) -> None:
        raise Cut

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        patch.setattr("tasks.core.step.Step.commit", cut)
        run_again(root, site.address, retry_failed=True)
    assert run_again(root, site.address) == first
    site.hits.clear()
    done = run_again(root, site.address, retry_failed=True)
    assert (done.outcome.kept, done.outcome.reasons) == (3, {})
    assert not site.hits  # its shards were committed
    assert [page.url for page in pages_of(root, done)][1:] == ["http://a.test/flaky", "http://a.test/flaky?2"]
