"""`--refresh` through all data steps: the bytes of a first run over the same pages, by every reader of an output."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from flows.dataprep import prepare
from flows.settings import DataprepSettings, resolve
from flows.sources import Sources
from gpt2train.runs.documents import find_pages
from gpt2train.store.manifest import Folder, need_manifest
from gpt2train.store.output import Output
from tasks.clean import step as cleaning
from tasks.download.shard_writer import changes
from tasks.extract import step as extraction
from tasks.outputs.verify.verify import Options, verify
from tasks.report.step import REPORT, report
from tests.tasks.corpus import Inline
from tests.tasks.download.test_refresh import Server
from tests.tasks.web_server import running_site

DOCS = Path(__file__).parents[2] / "docs" / "data" / "refresh.md"
PAGES = 24
SENTENCES = [
    "The library of the town opens at nine, and readers wait before its door on every morning of the week",
    "A reader who returns a book after its day pays a small sum, which the town spends on lamps and shelves",
    "Nobody knows how the old maps came into the cellar, but the keeper shows them to anyone who asks",
    "In winter the rooms are warm, so that people come who read nothing and talk about the weather",
    "The catalogue was written by hand for a hundred years, and each hand had its own way with numbers",
]


def text(number: int, word: str = "stands") -> str:
    chosen = itertools.permutations(SENTENCES, 4)
    lines = next(itertools.islice(chosen, number * 3, None))
    return "</p><p>".join(f"{line}, as page {number} {word} says in line {at}." for at, line in enumerate(lines * 3))


def run(folder: Path, lists: list[Path], address: str, **flags: Any) -> None:
    settings = resolve(
        DataprepSettings,
        None,
        {
            "urls": tuple(map(str, lists)),
            "output": str(folder),
            "connect_to": {"*.test": address},
            "blacklist": {"shard_rows": 10},
            "download": {"delay": 0, "allow_private": ("127.0.0.0/8",), "shared_rate_limit_dir": "off"},
            "clean": {"min_tokens": 40, "split": {"valid": 0.1, "test": 0.2}},
            "tokenizer": {"name": "train", "vocab_size": 400},
            **flags,
        },
    )
    with Inline(2) as runner:
        data = prepare(Folder(folder), settings, Sources(settings), runner)
        report(Folder(folder), data.manifests, settings.report, runner=runner)


def tree(folder: Path) -> dict[str, bytes]:
    """All files but the pages with their times, the hashes of their records, and what reports the times."""
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    skipped = ("pages/", "documents/_rows/", "report/", "timings.jsonl")
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(skipped)}


@pytest.mark.slow
def test_a_refreshed_corpus_equals_a_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extracted: list[Any] = []
    cleaned: list[Any] = []
    groups, clean_rows = extraction._groups, cleaning.clean_rows

    def counted_groups(pages: Any) -> Any:
        for group in groups(pages):
            extracted.extend(group)
            yield group

    def counted_rows(rows: Any, *args: Any) -> Any:
        cleaned.extend(rows)
        return clean_rows(rows, *args)

    monkeypatch.setattr(extraction, "_groups", counted_groups)
    monkeypatch.setattr(cleaning, "clean_rows", counted_rows)
    one, other, out = tmp_path / "one.txt", tmp_path / "other.txt", tmp_path / "out/mine"
    with running_site() as site:
        server = Server(site)
        for number in range(PAGES):
            server.put(f"/{number}", text(number), "none" if number == 5 else "etag")
        one.write_text("".join(f"http://a.test/{number}\n" for number in range(PAGES)))
        run(out, [one], site.address)
        assert len(extracted) == len(cleaned) == PAGES
        server.put("/3", text(3, "differs"))
        server.put("/7", None)
        server.put("/new", text(30))
        other.write_text("http://a.test/new\n")
        for seen in (extracted, cleaned, server.asked):
            seen.clear()
        run(out, [one, other], site.address, refresh=True)
        assert len(server.asked) == PAGES + 1 and [page.url for page in extracted] == [
            "http://a.test/3",
            "http://a.test/new",
        ]
        assert len(cleaned) == 2
        run(tmp_path / "fresh", [one, other], site.address)
    assert tree(out) == tree(tmp_path / "fresh")
    download = need_manifest(Folder(out / "pages"))
    assert changes(download) == {"new": 1, "changed": 1, "gone": 1, "unchanged": 22, "kept": 0, "missing": 0}
    page = (out / "report" / REPORT).read_text()
    assert "Changes since the earlier download" in page and "http://a.test/7" in page
    findings = list(verify(Folder(out), (), Options(2, 1, 2**28, 1, accept=False)))
    assert {finding.step for finding in findings} >= {"download", "extract", "tokenize"}
    assert not [problem for finding in findings for problem in finding.problems]
    urls = {"http://a.test/3", "http://a.test/4"}
    assert {url for url, _ in find_pages(Output(Folder(out)), urls)} == urls
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.S | re.M)
    exec(block, {})
    assert capsys.readouterr().out.count("http://a.test/7") == 1
