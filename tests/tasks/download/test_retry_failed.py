"""`--retry-failed`: only failed URLs are fetched again, and the download survives an interruption."""

from pathlib import Path
from typing import Any

import pytest

from gpt2train.store.manifest import Folder, need_manifest
from tasks.core.shards import read_rows
from tasks.download.ledger import ledgers_of
from tasks.download.step import download
from tasks.sources.index import read_pages
from tests.tasks.corpus import Inline
from tests.tasks.download.fetch_helpers import make_settings, run
from tests.tasks.web_server import Site, ok


def test_only_retryable_urls_are_fetched_again(site: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    site.handlers["/flaky"] = site.handlers["/broken"]
    shards = [
        ["http://a.test/1", "http://a.test/flaky", "http://a.test/gone"],
        ["http://a.test/2"],
        ["http://b.test/flaky"],
    ]
    first = run(root, site, shards)
    assert first.outcome.reasons == {"http_error": 2, "not_found": 1}
    before = {name: (root / "pages").read_bytes(name) for name in (root / "pages").files()}

    site.hits.clear()
    urls = need_manifest(root / "urls")
    assert download(root, urls, make_settings(), Inline(1), {"*.test": site.address}) == first
    assert not site.hits

    def heals_on_a(h: Any) -> None:
        ok(h) if h.headers["Host"] == "a.test" else h.answer(b"", status=500)

    site.handlers["/flaky"] = heals_on_a
    runner = Inline(1)
    second = download(root, urls, make_settings(), runner, {"*.test": site.address}, retry_failed=True)
    assert "download" not in runner.skipped
    assert {path for _, path in site.hits} == {"/robots.txt", "/flaky"}
    assert (second.fingerprint, second.outcome.kept) == (first.fingerprint, 3)
    assert second.content != first.content
    assert second.outcome.reasons == {"http_error": 1, "not_found": 1}
    pages = [page.url for r in second.outputs for page in read_pages(root / "pages", r.name)]
    assert pages == ["http://a.test/1", "http://a.test/flaky", "http://a.test/2"]
    ledger = [row for r in ledgers_of(second.outcome.audit) for row in read_rows(root / "pages", r.name)]
    assert [row["reason"] for row in ledger] == ["", "", "not_found", "", "http_error"]
    rejected = [row["url"] for r in second.outcome.rejected for row in read_rows(root / "pages", r.name)]
    assert rejected == ["http://a.test/gone", "http://b.test/flaky"]
    left = (root / "pages").files()
    assert (
        "part-00001.warc.gz" in left
        and (root / "pages").read_bytes("part-00001.warc.gz") == before["part-00001.warc.gz"]
    )
    assert set(left) == {"_manifest.json", *(record.name for record in second.outcome.files)}

    # The new state is what a run without the option finds done, and what the next round starts from.
    assert download(root, urls, make_settings(), Inline(1), {"*.test": site.address}) == second
    site.handlers["/flaky"] = ok
    third = download(root, urls, make_settings(), Inline(1), {"*.test": site.address}, retry_failed=True)
    assert (third.outcome.kept, third.outcome.reasons) == (4, {"not_found": 1})
    assert "part-00002.retry-2.warc.gz" in [record.name for record in third.outputs]
    site.hits.clear()
    runner = Inline(1)
    assert download(root, urls, make_settings(), runner, {"*.test": site.address}, retry_failed=True) == third
    assert runner.skipped == {"download"} and not site.hits


def test_an_interrupted_retry_leaves_the_download_complete(site: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    site.handlers["/flaky"] = site.handlers["/broken"]
    first = run(root, site, [["http://a.test/1", "http://a.test/flaky"], ["http://a.test/flaky?2"]])
    urls = need_manifest(root / "urls")
    site.handlers["/flaky"] = ok

    class Cut(Exception):
        pass

    def cut(*_: object, **__: object) -> None:
        raise Cut

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        patch.setattr("tasks.core.step.Step.commit", cut)
        download(root, urls, make_settings(), Inline(1), {"*.test": site.address}, retry_failed=True)
    assert download(root, urls, make_settings(), Inline(1), {"*.test": site.address}) == first
    site.hits.clear()
    done = download(root, urls, make_settings(), Inline(1), {"*.test": site.address}, retry_failed=True)
    assert (done.outcome.kept, done.outcome.reasons) == (3, {})
    assert not site.hits  # its shards were committed
    assert [page.url for r in done.outputs for page in read_pages(root / "pages", r.name)][1:] == [
        "http://a.test/flaky",
        "http://a.test/flaky?2",
    ]
