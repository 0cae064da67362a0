"""Lines that many documents of a host share: found by exact counts, removed, counted, on any number of workers."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpt2train.store.manifest import Folder, Manifest
from tasks.boilerplate.step import BoilerplateSettings, boilerplate, candidates, hash_of, without_lines
from tasks.core.shards import read_rows
from tests.tasks.corpus import Inline, extracted, rejected_of, rows_of

MENU = "Home | News | About this site"
NOTICE = "We value your privacy and use cookies"


def page(url: str, text: str) -> dict[str, Any]:
    return {"id": url, "url": url, "text": text, "source": "list"}


def run(folder: Path, rows: list[dict[str, Any]], per_shard: int = 7, **settings: Any) -> tuple[Folder, Manifest]:
    root = Folder(folder)
    documents = extracted(root, *(rows[start : start + per_shard] for start in range(0, len(rows), per_shard)))
    with Inline(workers=1) as runner:
        return root, boilerplate(root, documents, BoilerplateSettings(enabled=True, **settings), runner)


def site(host: str, count: int, menus: int) -> list[dict[str, Any]]:
    """Pages of a host, of which the first `menus` have the menu; page 0 has nothing else."""
    rows = []
    for number in range(count):
        own = f"Story number {number} of {host}\n\nIt is on one page only: {number}.\n}}\n"
        text = (f"{MENU}\n\n" if number < menus else "") + (own if number else "") + f"  {NOTICE}{number % 2 * ' '}"
        rows.append(page(f"http://{host}/{number}", text))
    return rows


CORPUS = [
    *site("a.example", 30, 12),
    *site("b.example", 30, 8),  # its menu is on too few pages
    *site("c.example", 9, 9),  # too few pages
    *[page(f"notes.jsonl#{number}", MENU) for number in range(20)],  # no host
]


def test_lines_of_many_pages_of_a_host_are_removed(tmp_path: Path) -> None:
    root, manifest = run(tmp_path, CORPUS)
    texts = {found["id"]: found["text"] for found in rows_of(root, manifest)}
    # The bracket is on every page.
    assert texts["http://a.example/5"] == "Story number 5 of a.example\n\nIt is on one page only: 5.\n}"
    assert texts["http://b.example/5"].startswith(f"{MENU}\n\nStory") and NOTICE not in texts["http://b.example/5"]
    unchanged = {found["id"]: found["text"] for found in CORPUS}
    for document, text in texts.items():
        if "c.example" in document or "#" in document:
            assert text == unchanged[document]
    [rejected] = rejected_of(root, manifest)
    assert (rejected["id"], rejected["reason"]) == ("http://a.example/0", "only_boilerplate")
    lines = list(read_rows(root / "boilerplate", "lines/part-00000.parquet"))
    expected = [("a.example", NOTICE, 30, 30), ("b.example", NOTICE, 30, 30), ("a.example", MENU, 12, 12)]
    assert [tuple(line.values()) for line in lines] == expected
    facts = manifest.outcome.facts
    assert (facts["documents_changed"], facts["lines_removed"], facts["distinct_lines"]) == (60, 72, 3)
    before, after = (sum(map(len, some.values())) for some in (unchanged, texts))
    assert facts["characters_removed"] == before - after


def test_the_bounds_are_inclusive_and_an_empty_corpus_is_handled(tmp_path: Path) -> None:
    _, manifest = run(tmp_path / "share", CORPUS, min_share=12 / 30, min_documents=12)
    assert manifest.outcome.facts["distinct_lines"] == 3
    _, manifest = run(tmp_path / "more", CORPUS, min_share=0.41, min_documents=12)
    assert manifest.outcome.facts["distinct_lines"] == 2
    assert run(tmp_path / "empty", [])[1].outcome.kept == 0


def test_ranges_groups_and_shards_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(*run(tmp_path / "one", CORPUS))
    monkeypatch.setattr("tasks.boilerplate.step.GROUP_ROWS", 10)
    monkeypatch.setattr("tasks.boilerplate.step.MAX_LINES", 20)
    root, manifest = run(tmp_path / "many", CORPUS, per_shard=4)
    assert rows_of(root, manifest) == expected
    assert {name.partition("/")[0] for name in (root / "boilerplate").files() if "/" in name} == {"lines", "rejected"}


@given(st.lists(st.text(st.sampled_from("ab \n\t\u3000}\r语"), max_size=12), max_size=5))
@hypothesis_settings(deadline=None)
def test_other_lines_are_unchanged(parts: list[str]) -> None:
    text = "\n".join(parts)
    found = list(candidates(text, "h", 2))
    lines = text.split("\n")
    assert all(" ".join(lines[index].split()) == line and key == hash_of(f"h\n{line}") for index, line, key in found)
    left = without_lines(text, {index for index, _, _ in found})
    dropped = {index for index, _, _ in found}
    kept = [line for index, line in enumerate(lines) if index not in dropped]
    assert Counter("".join("\n".join(kept).split())) == Counter("".join(left.split()))
    assert "\n\n\n" not in left
    assert left.split("\n")[0].rstrip() in ("", *(line.rstrip() for line in kept))  # with its indentation
