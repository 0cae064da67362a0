"""Planted near-duplicates in scripts with and without spaces between words."""

import gzip
import json
import random
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpt2train.data.text_units import units_of
from tests.tasks.corpus import row, texts_of
from tests.tasks.dedup.dedup_helpers import audit, run

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
