"""Bands and rows that are derived from the threshold: stated recall, measured recall, and settings that are given."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.dedup.bands import MAX_PERMUTATIONS, recall_at, with_bands
from tasks.dedup.minhash import band_name, sketch_texts
from tasks.dedup.settings import DedupSettings
from tests.tasks.corpus import read_jsonl, row, rows_of
from tests.tasks.dedup.dedup_helpers import audit, run

PAGE = [f"word{number:03d}" for number in range(300)]


def chosen(**given: float) -> tuple[int, int]:
    settings = with_bands(DedupSettings.model_validate(given))
    return settings.num_bands, settings.rows_per_band


@given(st.floats(0.05, 1), st.floats(0.5, 0.999))
def test_the_stated_recall_is_reached_with_the_most_rows(threshold: float, recall: float) -> None:
    bands, rows = chosen(threshold=threshold, recall=recall)
    if bands * rows <= MAX_PERMUTATIONS and (bands, rows) != (256, 1):
        assert recall_at(threshold, bands, rows) >= recall - 1e-9
        assert bands == 1 or recall_at(threshold, bands - 1, rows) < recall
    more = rows + 1
    assert (
        rows == 64 or recall_at(threshold, max(MAX_PERMUTATIONS // more, 1), more) < recall or more > MAX_PERMUTATIONS
    )


def test_choices_at_usual_thresholds() -> None:
    """16 bands of 8 at the default threshold: sketches of earlier outputs remain comparable."""
    pairs = [chosen(threshold=threshold) for threshold in (0.5, 0.6, 0.7, 0.8, 0.9)]
    assert pairs == [(22, 3), (21, 4), (16, 5), (16, 8), (9, 12)]
    assert chosen() == (16, 8)
    assert chosen(threshold=1e-300)[1] == 1


def test_given_numbers_are_kept_and_the_other_is_derived() -> None:
    assert chosen(threshold=0.7, num_bands=16, rows_per_band=8) == (16, 8)
    bands, rows = chosen(threshold=0.7, rows_per_band=8)
    assert rows == 8 and recall_at(0.7, bands, rows) >= 0.94 > recall_at(0.7, bands - 1, rows)
    bands, rows = chosen(threshold=0.7, num_bands=20)
    assert (bands, rows) == (20, 5)
    megatron = with_bands(DedupSettings(parity="megatron"))
    assert (megatron.num_bands, megatron.rows_per_band) == (10, 10)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_planted_pairs_at_each_threshold_are_candidates(real_data: Path, threshold: float) -> None:
    """Recall of the pairs up to 0.05 above the threshold, over eight seeds; all pairs above do better."""
    documents = list(read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz"))
    places = {document["id"]: place for place, document in enumerate(documents)}
    with gzip.open(real_data / "neardup/planted_dev/allpairs_w5_ge0.3.tsv.gz", "rt") as file:
        pairs = [row for row in csv.DictReader(file, delimiter="\t") if threshold <= float(row["jaccard"]) < 1]
    near = [pair for pair in pairs if float(pair["jaccard"]) < threshold + 0.05]
    assert len(near) >= 10
    ends = np.array([[places[pair["id_a"]], places[pair["id_b"]]] for pair in near])
    subset = sorted(set(ends.ravel()))
    texts = pa.array([documents[place]["text"] for place in subset], pa.large_string())
    one, other = np.searchsorted(subset, ends).T
    shares = []
    for seed in range(1, 9):
        settings = with_bands(DedupSettings(threshold=threshold, seed=seed))
        sketch = sketch_texts(texts, settings)
        bands = np.stack([sketch[band_name(band)].to_numpy(zero_copy_only=False) for band in range(settings.num_bands)])
        shares.append((bands[:, one] == bands[:, other]).any(axis=0).mean())
    assert np.mean(shares) >= 0.94 - 0.02


def test_the_manifest_has_the_numbers_and_not_the_recall(tmp_path: Path) -> None:
    rows = [row(" ".join(PAGE), document_id="a"), row(" ".join([*PAGE[:-1], "other"]), document_id="b")]
    root, manifest = run(tmp_path, rows, DedupSettings(threshold=0.7))
    assert [r["id"] for r in rows_of(root, manifest)] == ["a"]
    assert (manifest.parameters["num_bands"], manifest.parameters["rows_per_band"]) == (16, 5)
    assert "recall" not in manifest.parameters
    assert "band_15" in audit(root, manifest, "sketch/")[0]


def test_a_comparison_takes_the_bands_of_the_earlier_output(tmp_path: Path) -> None:
    old, manifest = run(tmp_path / "old", [row(" ".join(PAGE), document_id="a")])
    new = [row(" ".join([*PAGE[:-1], "other"]), document_id="b")]
    _, again = run(tmp_path / "new", new, DedupSettings(threshold=0.6, previous=(f"{old.url}/dedup",)))
    assert again.parameters["num_bands"] == manifest.parameters["num_bands"] == 16
    assert again.outcome.kept == 0
