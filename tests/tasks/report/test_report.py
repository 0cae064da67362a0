"""The data part of the report: correct counts, bounded lists, and escaped text."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.shards import CLEAN, commit_rows, rejected_row, write_table
from tasks.core.step import Step
from tasks.dedup.step import DedupSettings, dedup
from tasks.extract.step import ExtractSettings, extract
from tasks.report.findings import TOP, findings, rejected_samples, word_diff
from tasks.report.step import REPORT, ReportSettings, gather, report, summary
from tasks.shuffle.step import ShuffleSettings, shuffle
from tests.tasks.corpus import Inline, InlinePool, row
from tests.tasks.extract.made_pages import article
from tests.tasks.extract.test_step import download, page

EVIL = "<script>alert('x')</script><img src=http://evil.example/a.png>"
WORDS = " ".join(f"word{number}" for number in range(120))


def step_of(root: Folder, name: str, folder: str, kept: list[dict], dropped: list[dict]) -> Manifest:
    step = Step(root, name, version=1, parameters={}, inputs={}, folder=folder)
    outcomes = []
    for number in range(2):  # rows lie in two shards
        rows = [{key: found.get(key) for key in CLEAN.names} for found in kept[number::2]]
        outcomes.append(commit_rows(step.folder, f"part-{number:05d}.parquet", rows, dropped[number::2], CLEAN))
    return step.commit(Outcome.total(outcomes))


def download_of(root: Folder, hosts: int) -> Manifest:
    step = Step(root, "download", version=1, parameters={}, inputs={}, folder="pages")
    rows: list[dict[str, Any]] = [
        {"host": f"{number}.example{EVIL if number == 0 else ''}", "urls": 100, "ok": number, "failed": 100 - number}
        for number in range(hosts)
    ]
    rows.append({"host": "well.example", "urls": 5, "ok": 5, "failed": 0})
    for found in rows:
        found.update(top_reason="not_found" if found["failed"] else None, seconds=1.5)
    table = write_table(step.folder, "hosts.parquet", pa.Table.from_pylist(rows))
    return step.commit(Outcome(audit=(table,), seen=hosts * 100, kept=50, reasons={"not_found": hosts * 100 - 50}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, list[Manifest], str]:
    """Steps with adversarial text in every field that the page shows, and the page."""
    root = Folder(tmp_path_factory.mktemp("report"))
    good = [row(f"{WORDS} {number} {'x' * number}") for number in range(20)]
    repeated = [row(f"{EVIL} variant{n} {WORDS}", url=f"http://copy{n}.example/{EVIL}") for n in range(3)]
    foreign = [row(f"{EVIL} mot", url=f"http://fr{number}.example/{EVIL}") for number in range(7)]
    short = [row("short", url=f"http://short{number}.example") for number in range(30)]
    extracted = step_of(root, "extract", "documents", [*good, *repeated, *foreign, *short], [])
    dropped = [rejected_row(found, "wrong_language", "found fr, expected en") for found in foreign]
    dropped += [rejected_row(found, "too_short", f"{EVIL} tokens") for found in short]
    clean = step_of(root, "clean", "clean", [*good, *repeated], dropped)
    with Inline(workers=1) as runner:
        unique = dedup(root, clean, DedupSettings(), runner)
        shuffled = shuffle(root, unique, ShuffleSettings(), runner)
        manifests = [download_of(root, 30), extracted, clean, unique, shuffled]
        page = report(root, manifests, ReportSettings(samples=2), runner=runner)
    return root, manifests, (root / page.folder).read_bytes(REPORT).decode()


def test_text_of_documents_is_escaped(made: tuple[Folder, list[Manifest], str]) -> None:
    _, _, page = made
    assert "<script" not in page and "<img src=http" not in page
    assert page.count("&lt;script&gt;") > 8  # hosts, clusters, rejected rows: url, detail and text
    assert not re.search(r"<link|src=\"(?!data:)|href=|url\(", page)
    # A report without a training.
    for said in ("Rows per step", "Hosts with the most failures", "Largest duplicate clusters", "Languages", "Lengths"):
        assert said in page
    assert "to tokens." in page and "Training" not in page and "Scores" not in page


def test_counts_are_correct(made: tuple[Folder, list[Manifest], str]) -> None:
    root, manifests, _ = made
    data = findings(root, {manifest.step: manifest for manifest in manifests}, 2, InlinePool(1))
    kept = manifests[-1].outcome.kept
    languages = [("en", 23, kept), ("fr", 7, 0)]
    assert [(found["language"], found["before"], found["after"]) for found in data["languages"]] == languages
    assert [(found["name"], found["documents"]) for found in data["lengths"]] == [("extracted", 60), ("kept", kept)]
    assert data["lengths"][0]["p10"] == len("short")
    assert data["reasons"][0] == {"step": "download", "reason": "not_found", "count": 2950}
    assert not data["sampled"]


def test_a_part_that_cannot_be_made_is_left_out(
    made: tuple[Folder, list[Manifest], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no space for a picture")

    root, manifests, _ = made
    monkeypatch.setattr("tasks.report.findings.length_histogram", broken)
    data = findings(root, {manifest.step: manifest for manifest in manifests}, 2, InlinePool(1))
    assert data["length_picture"] is None and data["languages"]
    assert "left out: MemoryError: no space for a picture" in caplog.text


def test_lists_are_bounded(made: tuple[Folder, list[Manifest], str]) -> None:
    root, manifests, page = made
    data = findings(root, {manifest.step: manifest for manifest in manifests}, 2, InlinePool(1))
    assert len(data["hosts"]) == TOP and data["hosts"][0]["failed"] == 100
    assert "well.example" not in page
    found = {reason: (entry["count"], len(entry["rows"])) for reason, entry in data["rejected"]["clean"].items()}
    assert found == {"too_short": (30, 2), "wrong_language": (7, 2)}
    few = rejected_samples(root, manifests[2], 25)["too_short"]["rows"]
    assert len(few) == 25 and len({entry["url"] for entry in few}) == 25
    assert len(page) < 200_000


def test_characters_are_summed_by_rule_and_a_rule_that_drops_much_of_a_host_is_named(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    beside = f"<div class='newsletter'><p>{'Read the letter of the editor. ' * 15}</p></div>"
    shards = [
        [page(article(f"<p>{n}{number}</p>").encode(), f"http://a.example/{n}/{number}") for number in range(19)]
        + [page(article(f"{n}{number}{beside}").encode(), f"http://b.example/{n}/{number}") for number in range(4)]
        for n in range(2)
    ]
    pages = download(root, *shards)
    with Inline(workers=1) as runner:
        made = extract(root, pages, ExtractSettings(prefilter=False), runner)
        assert made.outcome.kept == 46
        found = findings(root, {"extract": made, "download": pages}, 2, runner.pool)["dropped"]
        written = report(root, [pages, made], ReportSettings(), runner=runner)
    assert found is not None and found["pages"] == 46
    assert sum(row["share"] for row in found["rules"]) == pytest.approx(1)
    assert [(row["host"], row["rule"], row["pages"]) for row in found["hosts"]] == [("b.example", "class", 8)]
    shown = (root / written.folder).read_bytes(REPORT).decode()
    assert "Rules that drop more than usual on a host" in shown and "a sample of 46 pages" in shown
    (root / pages.folder).remove(*(record.name for record in pages.outputs))
    assert findings(root, {"extract": made, "download": pages}, 2, InlinePool(1))["dropped"] is None


def test_the_largest_cluster_is_shown_with_a_diff(made: tuple[Folder, list[Manifest], str]) -> None:
    root, manifests, page = made
    first = findings(root, {manifest.step: manifest for manifest in manifests}, 2, InlinePool(1))["clusters"][0]
    assert first["size"] >= 3 and first["kept"].reason is None and first["other"].reason == "near_duplicate"
    kinds = [kind for kind, _ in first["diff"]]
    assert kinds == ["same", "gone", "new", "same"] or kinds == ["gone", "new", "same"]
    gone, new = (next(words for kind, words in first["diff"] if kind == wanted) for wanted in ("gone", "new"))
    assert f"<del>{gone}</del> <ins>{new}</ins>" in page


def test_lost_text_and_sources_are_shown(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    pages = [row(f"{WORDS} {number} {'x' * number}", f"http://kept.example/{number}") for number in range(19)]
    copies = [row(f"{WORDS} Copy{EVIL} {number}", f"http://`{EVIL.replace('/', '')}/{number}") for number in range(25)]
    clean = step_of(root, "clean", "clean", [*pages, *copies], [])
    with Inline(workers=1) as runner:
        manifests = [clean, dedup(root, clean, DedupSettings(policy="containment", containment=0.9), runner)]
        page = report(root, manifests, ReportSettings(), runner=runner)
    shown = (root / page.folder).read_bytes(REPORT).decode()
    facts = manifests[1].outcome.facts
    assert 0 < facts["lost_characters"] < facts["removed_characters"]
    assert f"{facts['removed_characters']:,} characters of duplicates removed (policy <code>containment" in shown
    assert "Sources that lost more than 90 %" in shown and "<script" not in shown
    text = summary(gather(root, manifests))
    assert f"{facts['lost_characters']:,} of them not in the documents kept instead." in text
    [line] = [line for line in text.splitlines() if line.startswith("* host")]
    assert line.count("`") == 2 and line.endswith("lost 24 of 25 documents to the deduplication")


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_a_diff_contains_both_texts(one: list[str], other: list[str]) -> None:
    parts = word_diff(" ".join(one), " ".join(other))
    assert " ".join(words for kind, words in parts if kind != "new").split() == one
    assert " ".join(words for kind, words in parts if kind != "gone").split() == other
    assert word_diff("a b c", "a x c") == [("same", "a"), ("gone", "b"), ("new", "x"), ("same", "c")]
    chinese = word_diff("今天天气很好。 GPT two", "今天下雨很好。 GPT two")
    assert chinese == [("same", "今天"), ("gone", "天气"), ("new", "下雨"), ("same", "很好。 GPT two")]


def test_corpora_without_duplicates_or_documents_are_reported(tmp_path: Path) -> None:
    for place, rows in (("some", [row(f"{number} {WORDS[number:]}"[:30]) for number in range(3)]), ("none", [])):
        root = Folder(tmp_path / place)
        clean = step_of(root, "clean", "clean", rows, [])
        with Inline(workers=1) as runner:
            unique = dedup(root, clean, DedupSettings(), runner)
            shuffled = shuffle(root, unique, ShuffleSettings(), runner)
            page = report(root, [clean, unique, shuffled], ReportSettings(), runner=runner)
        shown = (root / page.folder).read_bytes(REPORT).decode()
        assert "Largest duplicate clusters" not in shown and "Hosts with the most" not in shown
