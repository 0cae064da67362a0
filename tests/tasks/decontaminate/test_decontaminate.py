"""The decontaminate step: removal of every passage of an evaluation set."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, Manifest
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.decontaminate.ngrams import NgramIndex, word_spans, words_of
from tasks.decontaminate.step import DecontaminateSettings, decontaminate, plan_cuts, remove
from tests.tasks.corpus import Inline, cleaned, read_jsonl

FILLER = " ".join(f"Sentence number {n} says something about topic {n * 7}." for n in range(40))
PASSAGE = "She walked down to the old harbour at night and waited there until the last boat came in."


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[Runner]:
    NgramIndex(["one two"], 2, 2)  # compile before any test is timed
    with Inline(workers=1) as runner:
        yield runner


def jsonl(path: Path, *texts: str) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def rows_of(root: Folder, manifest: Manifest, which: str = "outputs") -> list[dict[str, Any]]:
    records = getattr(manifest.outcome, which)
    return [row for record in records for row in read_rows(root / manifest.folder, record.name)]


def survivors(texts: Sequence[str], text: str, longest: int, shortest: int) -> int:
    """Reference implementation: n-grams of the set in a text, by tuples in a Python set."""
    known = set()
    for other in texts:
        words = tuple(words_of(other))
        length = min(len(words), longest)
        known |= {words[i : i + length] for i in range(len(words) - length + 1) if len(words) >= shortest}
    words = tuple(words_of(text))
    return sum(words[i : i + n] in known for n in {len(gram) for gram in known} for i in range(len(words) - n + 1))


WORDS = st.sampled_from(["a", "b", "B", "c", "İ", "d."])
TEXTS = st.lists(WORDS, min_size=1, max_size=40).map(" ".join)


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS, st.integers(0, 6), st.integers(0, 6))
def test_no_ngram_of_an_evaluation_set_survives(texts: list[str], text: str, margin: int, min_piece: int) -> None:
    settings = DecontaminateSettings(ngram=4, min_ngram=2, margin=margin, min_piece=min_piece)
    index = NgramIndex(texts, 4, 2)
    left, cuts = remove(text, index, settings)
    assert survivors(texts, left, 4, 2) == 0
    assert (left == text) == (not cuts)
    assert bool(cuts) == bool(survivors(texts, text, 4, 2))
    remaining = iter(words_of(text))
    assert all(word in remaining for word in words_of(left))  # words are removed, none is added or moved


def test_the_step_cuts_matches_and_reports_them(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    planted = f"{FILLER} {PASSAGE} {FILLER}"
    many = f" {FILLER} ".join([PASSAGE] * 13)
    clean = cleaned(
        root,
        [(planted, "train"), (FILLER, "train"), (planted, "test")],
        [(PASSAGE, "valid"), (many, "train"), (f"{PASSAGE} {FILLER[:500]}", "train"), (planted, "valid")],
        min_tokens=100,
    )
    nothing = "Nothing of it is in any of the documents at all."
    evaluation = [("cloze", jsonl(tmp_path / "cloze.jsonl", nothing, PASSAGE))]
    manifest = decontaminate(root, clean, evaluation, DecontaminateSettings(), runner)
    kept = {row["id"]: row for row in rows_of(root, manifest)}
    assert sorted(kept) == ["0-0", "0-1", "0-2", "1-3"]
    assert kept["0-1"]["text"] == FILLER
    assert kept["0-2"]["text"] == planted  # the test split is the source of the set
    assert kept["0-0"]["text"].count("harbour") == 0
    assert kept["0-0"]["split"] == "train"
    assert kept["0-0"]["tokens"] > 100
    rejected = {row["id"]: (row["reason"], row["detail"]) for row in rows_of(root, manifest, "rejected")}
    assert rejected == {
        "1-0": ("contaminated", "1 cuts, the first by cloze row 2; nothing is left"),
        "1-1": ("too_contaminated", "13 cuts, the first by cloze row 2; at most 10 expected"),
        "1-2": ("too_short", rejected["1-2"][1]),
    }
    assert manifest.outcome.facts["documents_cut"] == 2
    assert manifest.outcome.facts["documents_exempt"] == 1
    assert manifest.outcome.facts["matches_before"] == 6 * (13 + 4)
    assert manifest.outcome.facts["matches_after"] == 0
    tables = [record.name for record in manifest.outcome.audit if "cuts" in record.name]
    [cut] = [row for name in tables for row in read_rows(root / manifest.folder, name) if row["id"] == "0-0"]
    assert PASSAGE in planted[cut["start"] : cut["end"]]
    assert (cut["set"], cut["row"], cut["matches"]) == ("cloze", 2, 6)
    assert decontaminate(root, clean, evaluation, DecontaminateSettings(), runner) == manifest
    assert "decontaminate" in runner.skipped


def test_a_changed_evaluation_set_runs_the_step_again(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    clean = cleaned(root, [(f"{FILLER} {PASSAGE} {FILLER}", "train")])
    path = jsonl(tmp_path / "set.jsonl", "Nothing of it is in any of the documents at all.")
    first = decontaminate(root, clean, [("set", path)], DecontaminateSettings(), runner)
    assert first.outcome.facts["documents_cut"] == 0
    jsonl(tmp_path / "set.jsonl", PASSAGE)
    second = decontaminate(root, clean, [("set", path)], DecontaminateSettings(), runner)
    assert second.fingerprint != first.fingerprint
    assert second.outcome.facts["documents_cut"] == 1


def test_common_phrases_are_kept_if_asked(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    planted = f"{FILLER} {PASSAGE} {FILLER}"
    clean = cleaned(root, [(planted, "train")] * 2, [(planted, "valid"), (planted, "test")])
    evaluation = [("set", jsonl(tmp_path / "set.jsonl", PASSAGE))]
    stay = decontaminate(root, clean, evaluation, DecontaminateSettings(key_threshold=3), runner)
    assert [row["text"] for row in rows_of(root, stay)] == [planted] * 4
    assert stay.outcome.facts["matches_before"] == stay.outcome.facts["matches_after"] == 3 * 6
    go = decontaminate(root, clean, evaluation, DecontaminateSettings(key_threshold=4), runner)
    assert go.outcome.facts["documents_cut"] == 3
    assert go.outcome.facts["matches_after"] == 0


def cut_once(text: str, passage: str, **settings: int) -> str:
    chosen = DecontaminateSettings(**{"margin": 0, "min_piece": 0, **settings})
    return remove(text, NgramIndex([passage], chosen.ngram, chosen.min_ngram), chosen)[0]


def test_cut_positions_refer_to_the_original_text() -> None:
    # 'İ'.lower() has two characters: positions in the lower-cased text are 50 higher.
    head = "İ" * 50 + " first. "
    assert cut_once(f"{head}{PASSAGE} Last.", PASSAGE) == f"{head.strip()}\n\nLast."
    spread = PASSAGE.replace(" ", " — \t ")  # far longer than its words
    assert cut_once(f"First. {spread} Last.", PASSAGE) == "First.\n\nLast."
    # The rest of a document keeps its indentation.
    text = f"    if x:\n{PASSAGE}\n        y = 1\n{PASSAGE} \n\n    z = 2"
    assert cut_once(text, PASSAGE) == "    if x:\n\n        y = 1\n\n    z = 2"
    text = f"{FILLER} {PASSAGE} Tiny. {PASSAGE} {FILLER}"  # short remaining pieces are dropped
    assert cut_once(text, PASSAGE, min_piece=200) == f"{FILLER}\n\n{FILLER}"


def test_short_documents_and_the_last_words_of_one_are_checked() -> None:
    words = PASSAGE.split()
    for count in (8, 12, 13):
        text = " ".join(words[:count])
        assert cut_once(text, text) == "" and cut_once(f"First. {text}", text) == "First."
    assert cut_once(f"First. {' '.join(words[:13])}", PASSAGE) == "First."
    short = " ".join(words[:7])  # than the shortest n-gram: it is not searched
    assert cut_once(f"First. {short}", short) == f"First. {short}"


def test_no_ngram_arises_across_a_cut() -> None:
    one, two = "a b c d", "e f g h"
    text = f"Begin. a b. {one} c. {one} {two}. d e. End."
    left, cuts = remove(text, NgramIndex([one, two, "a b d e"], 4, 2), DecontaminateSettings(margin=0, min_piece=0))
    assert survivors([one, two, "a b d e"], left, 4, 2) == 0
    assert max(cut.round for cut in cuts) == 1


def test_cuts_end_at_sentence_boundaries() -> None:
    text = 'He said "no." Then we left os.path here. The match is this. After it version 3.12 came. End.'
    index = NgramIndex(["the match is this"], 4, 4)
    start = text.index("Then")
    [cut] = plan_cuts(text, index.matches(text), margin=10)
    assert text[cut.start : cut.end] == " Then we left os.path here. The match is this. After it version 3.12 came."
    assert cut.start == start - 1


def test_planted_passages_of_lambada_are_removed(open_data: Path) -> None:
    passages = [row["text"] for row in read_jsonl(open_data / "lambada" / "lambada_test.jsonl")]
    index = NgramIndex(passages)
    assert len(passages) == 5153
    draw = random.Random(0)
    for number in draw.sample(range(len(passages)), 40):
        text = f"{FILLER}\n{passages[number].upper()}\n{FILLER}"
        holders = {source for match in index.matches(text) for source in index.sources(match.gram)}
        assert number in holders
        left, cuts = remove(text, index, DecontaminateSettings())
        assert index.matches(left) == []
        assert len(cuts) == 1
        assert len(left) > len(FILLER)
    assert index.matches(FILLER) == []


def test_evaluation_sets_of_the_user_are_searched(tmp_path: Path, runner: Runner) -> None:
    """A Parquet file with a key of its own and a plain text with other line ends."""
    root = Folder(tmp_path)
    other = "Nobody had ever said to the old man that the mill would be sold in the spring of that year."
    clean = cleaned(root, [(f"{FILLER} {PASSAGE} {FILLER}", "train"), (f"{FILLER} {other} {FILLER}", "train")])
    folder = tmp_path / "sets"
    folder.mkdir()
    pq.write_table(pa.table({"question": [PASSAGE]}), folder / "qa.parquet")
    settings = DecontaminateSettings(against=(str(folder),), key="question")
    first = decontaminate(root, clean, [], settings, runner)
    assert first.outcome.facts["documents_cut"] == 1
    (folder / "story.txt").write_text(other.replace(" the ", " the\n"))
    second = decontaminate(root, clean, [], settings, runner)
    assert second.outcome.facts["documents_cut"] == 2
    assert second.outcome.facts["matches_after"] == 0
    (folder / "elsewhere").mkdir()
    for file in folder.glob("*.*"):
        file.rename(folder / "elsewhere" / file.name)
    assert decontaminate(root, clean, [], settings, runner) == second  # the content counts, not the path


def test_a_set_of_short_passages_is_named(tmp_path: Path, runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    root = Folder(tmp_path)
    clean = cleaned(root, [(f"{FILLER} {PASSAGE}", "train")])
    trivia = jsonl(tmp_path / "trivia.jsonl", "Who built the mill?", "Where is the harbour?")
    mixed = jsonl(tmp_path / "mixed.jsonl", "Who built the mill?", PASSAGE)
    settings = DecontaminateSettings(against=(trivia, mixed))
    decontaminate(root, clean, [], settings, runner)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "decontaminate: trivia is not searched for: of its 2 passages none has 8 words; "
        "a lower decontaminate.min_ngram searches for them"
    ]
    caplog.clear()
    assert decontaminate(root, clean, [], settings.model_copy(update={"min_ngram": 4}), runner).outcome.kept == 1
    assert not caplog.records


def test_contradicting_lengths_and_a_missing_evaluation_file_are_named(tmp_path: Path, runner: Runner) -> None:
    with pytest.raises(UserError, match="min_ngram 9 is more than ngram 8; give at most that value"):
        build(DecontaminateSettings, {"ngram": 8, "min_ngram": 9})
    root = Folder(tmp_path)
    clean = cleaned(root, [(FILLER, "train")])
    with pytest.raises(UserError, match=r"nowhere\.jsonl"):
        decontaminate(root, clean, [("set", str(tmp_path / "nowhere.jsonl"))], DecontaminateSettings(), runner)
    assert word_spans("") == []
