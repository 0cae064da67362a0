"""Reuse of earlier rows by the extraction: the bytes of a run from scratch, whatever came, went, changed or moved."""

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.core import row_reuse
from tasks.core.runner import Runner
from tasks.core.shards import read_table, write_table
from tasks.download.warc import Page
from tasks.extract import step as module
from tasks.extract.settings import ExtractSettings
from tasks.extract.step import extract
from tasks.sources import index
from tests.tasks.extract.test_step import ARTICLE, download

DAY, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(workers=2) as runner:
        yield runner


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []
    groups = module._groups

    def counted(pages: Any) -> Any:
        for group in groups(pages):
            urls.extend(page.url for page in group)
            yield group

    monkeypatch.setattr(module, "_groups", counted)
    return urls


def page(number: int, text: str = "library", day: str = DAY, head: str = "") -> Page:
    body = ARTICLE.replace("library", f"{text} {number}").replace("<head>", f"<head>{head}").encode()
    if text == "empty":
        body = f"<html><body><!-- {number} --></body></html>".encode()
    url = f"http://a.example/{number}"
    return Page(url, url, "text/html", None, body, day, hashlib.sha256(body).hexdigest(), "list")


def dated(number: int, date: str, day: str = DAY) -> Page:
    return page(number, day=day, head=f"<meta property='article:published_time' content='{date}'>")


def tree(root: Folder) -> dict[str, bytes]:
    folder = root / "documents"
    return {name: folder.read_bytes(name) for name in folder.files()}


def from_scratch(tmp_path: Path, shards: list[list[Page]], runner: Runner, **settings: Any) -> dict[str, bytes]:
    root = Folder(tmp_path / "scratch")
    shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
    extract(root, download(root, *shards), ExtractSettings(**settings), runner)
    return tree(root)


def run(root: Folder, shards: list[list[Page]], runner: Runner, **settings: Any) -> Manifest:
    return extract(root, download(root, *shards), ExtractSettings(**settings), runner)


def test_only_changed_pages_are_extracted_again(tmp_path: Path, runner: Runner, sent: list[str]) -> None:
    """Added, changed, removed and moved pages, rejected ones among them, on disk and in an object store."""
    pages = [page(number, "empty" if number % 5 == 4 else "library") for number in range(12)]
    shards = [pages[:4], pages[4:8], pages[8:]]
    new = [
        [page(20), pages[0], pages[1], page(2, "changed")],
        [pages[3], pages[8], pages[4], page(5, "empty"), pages[4]],
        [pages[9], page(21, "empty"), pages[11], pages[6]],
        [page(22), dataclasses.replace(pages[7], content_language="de"), dataclasses.replace(pages[10], source="b")],
    ]
    expected = from_scratch(tmp_path, new, runner)
    for root in (Folder(tmp_path / "out"), Folder("memory://row-reuse/out")):
        run(root, shards, runner)
        sent.clear()
        run(root, new, runner)
        assert sorted(int(url.rpartition("/")[2]) for url in sent) == [2, 5, 7, 10, 20, 21, 22]
        assert tree(root) == expected
        sent.clear()
        run(root, shards[:1], runner)  # fewer shards, from the second generation
        assert sorted(int(url.rpartition("/")[2]) for url in sent) == [2]
        assert tree(root) == from_scratch(tmp_path, shards[:1], runner)
        sent.clear()


def test_rows_of_other_settings_packages_or_versions_are_not_taken(
    tmp_path: Path, runner: Runner, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pages = Folder(tmp_path / "out"), [page(number) for number in range(3)]
    new = [[*pages, page(3)]]
    run(root, [pages], runner)
    shutil.copytree(tmp_path / "out", tmp_path / "kept")

    def pages_sent(**settings: Any) -> int:
        sent.clear()
        run(root, new, runner, **settings)
        assert not [name for name in tree(root) if name.startswith("_previous")]
        count = len(sent)
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(tmp_path / "kept", tmp_path / "out")
        return count

    assert pages_sent() == 1
    assert pages_sent(tables=False) == 4
    with monkeypatch.context() as patch:
        patch.setattr("tasks.core.step.versions_of", lambda packages: dict.fromkeys(packages, "0"))
        patch.setattr("tasks.core.step.Step.check_versions", lambda self: None)
        assert pages_sent() == 4
    with monkeypatch.context() as patch:
        make = module.Step
        patch.setattr(module, "Step", lambda *args, **options: make(*args, **{**options, "version": 99}))
        assert pages_sent() == 4


def test_pages_whose_records_stay_are_not_decompressed(
    tmp_path: Path, runner: Runner, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are rejected ones; a record with another fetch time is, and its result is still taken."""
    root, pages = Folder(tmp_path / "out"), [page(number, "empty" if number == 1 else "library") for number in range(4)]
    run(root, [pages], runner)
    new = [[dataclasses.replace(pages[0], fetched_at=LATER), pages[1], page(2, "changed"), pages[3]]]
    read: list[str] = []
    pages_of = index._pages_of

    def counted(*args: Any) -> Any:
        for found in pages_of(*args):
            read.append(found.url)
            yield found

    sent.clear()
    with monkeypatch.context() as patch:
        patch.setattr(index, "_pages_of", counted)
        run(root, new, runner)
        assert read == [pages[0].url, pages[2].url] and sent == [pages[2].url]
        assert tree(root) == from_scratch(tmp_path, new, runner)


def test_keys_of_an_older_release_give_rows(tmp_path: Path, runner: Runner, sent: list[str]) -> None:
    """They lack the hashes of the stored records."""
    root, pages = Folder(tmp_path / "out"), [page(number, "empty" if number == 1 else "library") for number in range(3)]
    run(root, [pages], runner)
    keys = read_table(root / "documents", "_rows/part-00000.parquet")
    old = keys.drop_columns(["stored"])
    made = {**keys.schema.metadata, b"rows": row_reuse._digest_of(old).encode()}
    write_table(root / "documents", "_rows/part-00000.parquet", old.replace_schema_metadata(made))
    sent.clear()
    new = [[*pages, page(3)]]
    run(root, new, runner)
    assert sent == [page(3).url] and tree(root) == from_scratch(tmp_path, new, runner)


@pytest.mark.slow
def test_files_that_do_not_belong_to_their_keys_give_no_row(tmp_path: Path, runner: Runner, sent: list[str]) -> None:
    """A part, or its keys, as a kill between two writes, another run, or a corpus of an older release leaves them."""
    pages = [page(number, "empty" if number == 1 else "library") for number in range(3)]
    other = [page(number, "other") for number in range(3)]
    root, new = Folder(tmp_path / "out"), [[*pages, page(3)]]
    expected = from_scratch(tmp_path, new, runner)
    run(Folder(tmp_path / "second"), [other], runner)
    names = ("part-00000.parquet", "rejected/part-00000.parquet", "_rows/part-00000.parquet")
    for name in names:
        for damage in ("removed", "other", "cut"):
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            run(root, [pages], runner)
            victim, source = tmp_path / "out/documents" / name, tmp_path / "second/documents" / name
            data = b"" if damage == "removed" else source.read_bytes() if source.exists() else b"x"
            victim.write_bytes(victim.read_bytes()[:-50] if damage == "cut" else data)
            if damage == "removed":
                victim.unlink()
            sent.clear()
            run(root, new, runner)
            assert len(sent) == 4, (name, damage)
            assert tree(root) == expected


def test_a_date_after_the_fetch_is_looked_at_again(tmp_path: Path, runner: Runner, sent: list[str]) -> None:
    """A later fetch of the same bytes: only a page whose date depends on the day of the fetch is extracted again."""
    dates = ["2025-12-31", "2026-01-15", "2027-01-01", ""]

    def pages(day: str) -> list[Page]:
        return [dated(number, date, day) if date else page(number, day=day) for number, date in enumerate(dates)]

    root = Folder(tmp_path / "out")
    run(root, [pages(DAY)], runner)
    for day, expected in ((LATER, [1, 2]), (DAY, [1, 2])):
        sent.clear()
        run(root, [pages(day)], runner)
        assert sorted(int(url[-1]) for url in sent) == expected
        assert tree(root) == from_scratch(tmp_path, [pages(day)], runner)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [pytest.param("move", marks=pytest.mark.exhaustive), pytest.param("batch", marks=pytest.mark.exhaustive), "commit"],
)
def test_a_killed_run_goes_on(
    tmp_path: Path, runner: Runner, sent: list[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An interruption at each file that is moved, after each batch, and before the manifest."""
    pages = [page(number, "empty" if number % 4 == 1 else "library") for number in range(6)]
    new = [[page(9), *pages[:2]], pages[2:4], [*pages[4:], page(8)]]
    expected, root = from_scratch(tmp_path, new, runner), Folder(tmp_path / "out")

    class Cut(BaseException):
        pass

    target, name = {
        "move": (Folder, "move"),
        "batch": (module.Step, "commit_batch"),
        "commit": (module.Step, "remove_batch_records"),
    }[moment]
    for allowed in range(20):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        run(root, [pages[:2], pages[2:4], pages[4:]], runner)
        sent.clear()
        calls = iter(range(allowed))
        original = getattr(target, name)

        def cut(*args: Any, calls: Any = calls, original: Any = original) -> Any:
            if next(calls, None) is None:
                raise Cut
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(target, name, cut)
            try:
                run(root, new, runner)
            except Cut:
                pass
            else:
                break
        run(root, new, runner)
        assert tree(root) == expected
        assert set(sent) == {"http://a.example/8", "http://a.example/9"}
    assert allowed >= {"move": 4, "batch": 3, "commit": 1}[moment]


@pytest.mark.parametrize("allowed", [0, 2, 99])
def test_other_settings_after_a_kill_take_no_row(
    tmp_path: Path, runner: Runner, sent: list[str], monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """The run that was killed while it moved files, or in its first batch, had the settings of the earlier output."""
    pages, root = [page(number) for number in range(4)], Folder(tmp_path / "out")
    run(root, [pages[:2], pages[2:]], runner)
    calls, move = iter(range(allowed)), Folder.move

    def cut(*args: Any) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        move(*args)

    def fail(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    new = [[*pages, page(9)]]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Folder, "move", cut)
        patch.setattr(module, "commit_results", fail)
        run(root, new, runner)
    sent.clear()
    run(root, new, runner, tables=False)
    assert len(sent) == 5 and tree(root) == from_scratch(tmp_path, new, runner, tables=False)


def test_rows_that_moved_far_are_computed(tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a row reads a bounded number of files."""
    monkeypatch.setattr(row_reuse, "MAX_FRUITLESS", 1)
    pages = [page(number) for number in range(3)]
    root, new = Folder(tmp_path / "out"), [[one] for one in reversed(pages)]
    run(root, [[one] for one in pages], runner)
    run(root, new, runner)
    assert tree(root) == from_scratch(tmp_path, new, runner)
