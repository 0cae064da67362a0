"""Repeated runs of words: exactly those that plain Python finds are removed, whatever the shards and workers."""

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpt2train.store.manifest import Folder, Manifest
from tasks.core.shards import read_rows
from tasks.dedup.reference import WORD
from tasks.substrings.grams import cut_spans, without
from tasks.substrings.step import SubstringSettings, substrings
from tests.tasks.corpus import Inline, documents_of, pieces_of_novels, rejected_of, row, rows_of
from tests.tasks.dedup.dedup_helpers import words as text


def run(
    folder: Path, rows: list[dict[str, Any]], per_shard: int = 3, min_tokens: int = 0, **settings: Any
) -> tuple[Folder, Manifest]:
    root = Folder(folder)
    documents = documents_of(root, rows, per_shard)
    with Inline(workers=1) as runner:
        chosen = SubstringSettings(enabled=True, **settings)
        return root, substrings(root, documents, chosen, runner, min_tokens=min_tokens)


def expected(texts: list[str], min_words: int) -> list[str]:
    """The same by a table of all n-grams."""
    seen: set[str] = set()
    found = []
    for one in texts:
        spans = [match.span() for match in WORD.finditer(one)]
        cut = set()
        for first in range(len(spans) - min_words + 1):
            start, end = spans[first][0], spans[first + min_words - 1][1]
            gram = " ".join(one[start:end].split())
            if gram in seen:
                cut.update(range(start, end))
            seen.add(gram)
        # Characters that no word touches between two cuts that meet are cut as well.
        marked = "".join("\0" if at in cut else letter for at, letter in enumerate(one))
        runs = [whole(one, *run.span()) for run in re.finditer("\0+", marked)]
        ends = [0, *(end for run in runs for end in run), len(one)]
        lines = (one[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))
        pieces = [re.sub(r"^(?:\s*\n|\s+)", "", line).rstrip() for line in lines]  # whole lines stay indented
        found.append("\n\n".join(piece for piece in pieces if WORD.search(piece)) if cut else one)
    return found


def whole(text: str, start: int, end: int) -> tuple[int, int]:
    """A run with the punctuation around it, and without the parts of words at its ends."""
    for token in re.finditer(r"\S+", text):
        if token.start() < start < token.end():
            start = token.end() if re.search(r"\w", text[token.start() : start]) else token.start()
        if token.start() < end < token.end():
            end = token.start() if re.search(r"\w", text[end : token.end()]) else token.end()
    return start, end


def test_a_planted_run_stays_once(tmp_path: Path) -> None:
    rows = [
        row(text((0, 100)), document_id="first"),
        row(f"Own words. {text((20, 70))}, and the end.", document_id="fifty"),
        row(text((200, 230), (20, 69), (240, 260)), document_id="forty-nine"),
        row(text((30, 90)).replace(" ", "\n "), document_id="nothing"),
        row(text((30, 90)).upper(), document_id="case"),
        row(text((300, 360), (200, 205), (300, 360)), document_id="twice"),
        row(f"{text((10, 80))} few", document_id="short"),
    ]
    root, manifest = run(tmp_path, rows, min_tokens=5)
    left = {found["id"]: found["text"] for found in rows_of(root, manifest)}
    assert left["fifty"] == "Own words.\n\nand the end."
    assert left["twice"] == text((300, 360), (200, 205))
    unchanged = {found["id"]: found["text"] for found in rows}
    assert all(left[name] == unchanged[name] for name in ("first", "forty-nine", "case"))
    reasons = {found["id"]: found["reason"] for found in rejected_of(root, manifest)}
    assert reasons == {"nothing": "only_repeated", "short": "too_short"}
    cuts = list(read_rows(root / "substrings", "cuts/part-00000.parquet"))
    assert [(cut["id"], unchanged[cut["id"]][cut["start"] : cut["end"]]) for cut in cuts] == [
        ("fifty", f"{text((20, 70))},")
    ]
    facts = manifest.outcome.facts
    assert (facts["documents_changed"], facts["spans_removed"]) == (2, 4)
    assert run(tmp_path / "empty", [])[1].outcome.kept == 0


@example([["a", "d\n"] * 5 + ["b"]])
@given(st.lists(st.lists(st.sampled_from(["a", "b", "c!", "语", "--", "d\n"]), max_size=40), min_size=1, max_size=4))
@hypothesis_settings(deadline=None, max_examples=15)
def test_exactly_the_repeated_runs_are_removed(documents: list[list[str]]) -> None:
    texts = [" ".join(words).strip() for words in documents]
    rows = [row(one, document_id=f"{number}") for number, one in enumerate(texts)]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        left = {found["id"]: found["text"] for found in rows_of(*run(Path(folder), rows, 2, min_words=8))}
    assert [left.get(f"{number}", "") for number in range(len(texts))] == expected(texts, 8)


def test_shards_groups_and_ranges_change_nothing(
    open_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = pieces_of_novels(open_data, 14)
    texts = [*pieces, *(f"{one[:400]} {other[700:]}" for one, other in zip(pieces, pieces[7:], strict=False))]
    rows = [row(one, document_id=f"{number:03d}") for number, one in enumerate(texts)]
    root, manifest = run(tmp_path / "one", rows, 100)
    wanted = [one for one in expected(texts, 50) if one]
    assert [found["text"] for found in rows_of(root, manifest)] == wanted and wanted != texts
    monkeypatch.setattr("tasks.substrings.step.GROUP_ROWS", 8)
    monkeypatch.setattr("tasks.substrings.step.MAX_HASHES", 100)
    monkeypatch.setattr("tasks.substrings.step.BATCH_TEXTS", 3)
    many = run(tmp_path / "many", rows, 5)
    assert [found["text"] for found in rows_of(*many)] == wanted
    assert {name.partition("/")[0] for name in (many[0] / "substrings").files() if "/" in name} <= {"cuts", "rejected"}


def test_cuts_that_meet_are_merged() -> None:
    one = "a b c d, e f g h. i"
    assert cut_spans(one, np.array([0, 4]), 4) == [(0, 17)] and without(one, [(0, 17)]) == "i"
    assert cut_spans(one, np.array([0, 5]), 3) == [(0, 5), (11, 17)]
    assert without(one, [(0, 5), (11, 17)]) == "d, e\n\ni"


@pytest.mark.parametrize(
    ("document", "left"),
    [
        ("I can't a b c d. 3.15 more", "I can't\n\n3.15 more"),
        ("x 10^t a b c d.15 more", "x 10^t\n\nd.15 more"),
        ("ข่ t a b c กี่ง", "ข่\n\nกี่ง"),
        ("if x:\n    y = 't a b c d'\n    z = 1", "if x:\n    y =\n\n    z = 1"),
        ("a(t.a.b.c.d)e", "a(\n\n)e"),
    ],
)
def test_a_cut_leaves_no_part_of_a_word(document: str, left: str) -> None:
    run_of_words = re.search(r"t\W*a\W*b\W*c\W*[dก]", document)
    assert run_of_words is not None
    first = len(WORD.findall(document[: run_of_words.start()]))
    assert without(document, cut_spans(document, np.array([first]), 5)) == left
