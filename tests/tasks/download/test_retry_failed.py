"""`--retry-failed`: only failed URLs are fetched again, and the download survives an interruption."""

from pathlib import Path
from typing import Any

import pytest

from gpt2train.store.manifest import Folder
from tests.tasks.corpus import Inline, rejected_of
from tests.tasks.download.fetch_helpers import ledger_of, pages_of, run, run_again
from tests.tasks.web_server import Site, ok


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
