"""Rules of the dedup step on a few documents, and planted near-duplicates in scripts of all kinds."""

import gzip
import json
import random
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpt2train.data.text_units import units_of
from tasks.dedup.settings import DedupSettings
from tests.tasks.corpus import rejected_of, row, rows_of, texts_of
from tests.tasks.dedup.dedup_helpers import audit, run

TEXT = " ".join(f"word{i:02d}" for i in range(100))


def test_exact_copies_and_short_and_empty_texts_are_handled(tmp_path: Path) -> None:
    rows = [
        row("Two words", document_id="b"),
        row("two  WORDS\n", document_id="a"),
        row("Two words!", document_id="c"),
        row("...", document_id="d"),
        row("???", document_id="e"),
        row("", document_id="f"),
        row(" ", document_id="g"),
        row(TEXT, document_id="h"),
        row(TEXT.upper(), document_id="i"),
        row(TEXT.replace("word05 ", "word05, "), document_id="j"),
    ]
    root, manifest = run(tmp_path, rows, per_shard=3)
    # The longer copy stays (`a` and `g` have more white space), then the lower id; short texts must be equal.
    assert [r["id"] for r in rows_of(root, manifest)] == ["a", "c", "d", "e", "g", "j"]
    reasons = {r["id"]: (r["reason"], r["detail"]) for r in rejected_of(root, manifest)}
    assert {key: reason for key, (reason, _) in reasons.items()} == {
        "b": "exact_duplicate",
        "f": "exact_duplicate",
        "h": "near_duplicate",
        "i": "near_duplicate",
    }
    assert reasons["b"][1] == f"same text as {rows[1]['url']} (Jaccard 1.000)"
    assert manifest.outcome.reasons == {"exact_duplicate": 2, "near_duplicate": 2}


@pytest.mark.parametrize(("policy", "kept"), [("greedy", ["a", "c"]), ("connected", ["a"])])
def test_a_chain_of_duplicates_follows_the_policy(tmp_path: Path, policy: Any, kept: list[str]) -> None:
    """a ~ b ~ c, but a and c are too different: greedy keeps both ends, connected only the best."""
    words = TEXT.split()
    texts = {key: " ".join(words[start : start + 91]) for key, start in (("a", 0), ("b", 4), ("c", 8))}
    settings = DedupSettings(policy=policy, threshold=0.9, num_bands=64, rows_per_band=2)
    rows = [row(text, document_id=key) for key, text in texts.items()]
    root, manifest = run(tmp_path, rows, settings)
    assert [r["id"] for r in rows_of(root, manifest)] == kept
    assert {m["cluster"] for m in audit(root, manifest, "clusters/")} == {"a"}
    details = {r["id"]: r["detail"] for r in rejected_of(root, manifest)}
    assert details["b"] == f"much like {rows[0]['url']} (Jaccard 0.912)"
    if policy == "connected":
        assert details["c"] == f"much like {rows[0]['url']} (in one cluster, not compared)"


def test_empty_corpora_and_shards_are_handled(tmp_path: Path) -> None:
    root, manifest = run(tmp_path, [])
    assert (manifest.outcome.seen, manifest.outcome.kept) == (0, 0)
    assert rows_of(root, manifest) == []


def test_the_threshold_is_inclusive(tmp_path: Path) -> None:
    """8 common 1-grams of 10 are 0.8 exactly."""
    rows = [row("a1 a2 a3 a4 a5 a6 a7 a8 b1", document_id="x"), row("a1 a2 a3 a4 a5 a6 a7 a8 c1", document_id="y")]
    for threshold, kept in ((0.8, ["x"]), (0.800001, ["x", "y"])):
        settings = DedupSettings(ngram=1, threshold=threshold, num_bands=64, rows_per_band=1)
        root, manifest = run(tmp_path / str(threshold), rows, settings)
        assert [r["id"] for r in rows_of(root, manifest)] == kept


def test_boilerplate_in_a_hot_bucket_gives_linear_pairs(tmp_path: Path) -> None:
    """3,000 pages that differ in one word of two hundred: one stays, and the pairs are linear in their number."""
    words = " ".join(f"word{number:03d}" for number in range(200))
    rows = [row(f"{words} page{number:05d}", document_id=f"{number:05d}") for number in range(3000)]
    root, manifest = run(tmp_path, rows, DedupSettings(bucket_pivots=8))
    assert [r["id"] for r in rows_of(root, manifest)] == ["00000"]
    assert manifest.outcome.facts["hot_buckets"] == 16
    assert manifest.outcome.facts["candidate_pairs"] <= 2 * 8 * 3000  # not every page is in each of the buckets


def test_parity_sets_the_defaults_of_settings_not_given() -> None:
    settings = DedupSettings(parity="megatron", rows_per_band=9)
    assert (settings.shingle, settings.num_bands, settings.rows_per_band, settings.threshold) == (
        "characters",
        10,
        9,
        0.7,
    )
    assert DedupSettings(**settings.model_dump()) == settings


def test_parity_includes_the_last_shingle_unlike_megatron(tmp_path: Path) -> None:
    """Five letters are one shingle: Megatron's `range(0, len - 5)` had none."""
    rows = [row("abcde", document_id="a"), row("abcde", document_id="b"), row("abcdf", document_id="c")]
    root, manifest = run(tmp_path, rows, DedupSettings(parity="megatron"))
    assert [r["id"] for r in rows_of(root, manifest)] == ["a", "c"]
    sketch = audit(root, manifest, "sketch/")
    assert all(r["band_00"] is not None for r in sketch) and sketch[0]["band_00"] != sketch[2]["band_00"]


UNITS = 300  # of a document
DOCUMENTS = 150


def planted_recall(texts: Sequence[str], join: str, edits: int, folder: Path) -> float:
    """Share of planted copies with up to `edits` replaced units that are found at the default settings."""
    chance = random.Random(0)
    units = [unit for text in texts for unit in units_of(text)]
    assert len(units) >= DOCUMENTS * UNITS
    rows, pairs = [], set()
    for number in range(DOCUMENTS):
        original = units[number * UNITS : (number + 1) * UNITS]
        copy = original.copy()
        for place in chance.sample(range(UNITS), 1 + number % edits):
            copy[place] = chance.choice(units)
        ids = (f"{number:03d}a", f"{number:03d}b")
        rows += [row(join.join(text), document_id=name) for text, name in zip((original, copy), ids, strict=True)]
        pairs.add(frozenset(ids))
    done = run(folder, rows)
    found = {frozenset((p["first_id"], p["second_id"])) for p in audit(*done, "pairs/") if p["accepted"]}
    found |= {frozenset((m["id"], m["kept_id"])) for m in audit(*done, "clusters/") if m["reason"] == "exact_duplicate"}
    assert not found - pairs
    return len(found) / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "least"),
    [(5, 0.97), (9, 0.7)],  # the most edits leave a Jaccard similarity of about 0.84, and of 0.74, below the threshold
)
def test_planted_chinese_duplicates_have_the_recall_of_english_ones(
    real_data: Path, tmp_path: Path, edits: int, least: float
) -> None:
    corpus = real_data / "eval/zh/corpus"
    if not corpus.is_dir():
        pytest.skip(f"no Chinese corpus at {corpus}")
    novel = (corpus / "hongloumeng.txt").read_text(encoding="utf-8")
    chinese = planted_recall([novel], "", edits, tmp_path / "zh")
    speeches = texts_of(real_data / "text" / "speeches_dev.jsonl.gz", 1000)
    english = planted_recall(speeches, " ", edits, tmp_path / "en")
    assert min(chinese, english) >= least
    assert abs(chinese - english) <= 0.02, (chinese, english)


def passages_of(data: Path, language: str) -> str:
    """Text in a language: passages of the UDHR, or Japanese web pages."""
    if language == "jpn":
        with tarfile.open(data / "html_docs/html_docs_dev.tar.xz") as archive:
            pages = [file.read().decode(errors="ignore") for one in archive if (file := archive.extractfile(one))]
        return " ".join(text for page in pages for text in re.findall("[\u3040-\u9fff、。]{40,}", page) if "の" in text)
    with gzip.open(data / "lang/udhr_lang_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = map(json.loads, file)
        return " ".join(row["text"] for row in rows if row["lang3"] == language)


def shuffled_pieces(units: Sequence[str], size: int = 12) -> list[str]:
    """More units than the documents need, in pieces of a text in random order: no two documents are alike."""
    chance = random.Random(1)
    starts = (chance.randrange(len(units) - size) for _ in range(2 * DOCUMENTS * UNITS // size))
    return [unit for start in starts for unit in units[start : start + size]]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "language", ["tha", "jpn", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("lao", "mya", "bod"))]
)
def test_planted_duplicates_in_other_scripts_have_the_recall_of_english_ones(
    real_data: Path, tmp_path: Path, language: str
) -> None:
    units = units_of(passages_of(real_data, language))
    if len(units) < 500:
        pytest.skip(f"no text in {language} at {real_data}")
    english = [word for text in texts_of(real_data / "text" / "speeches_dev.jsonl.gz", 200) for word in text.split()]
    found = {
        name: planted_recall([join.join(shuffled_pieces(some))], join, 5, tmp_path / name)
        for name, some, join in (("theirs", units, ""), ("english", english, " "))
    }
    assert min(found.values()) >= 0.97 and abs(found["theirs"] - found["english"]) <= 0.02, found
