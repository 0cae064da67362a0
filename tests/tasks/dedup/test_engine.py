"""The engine `datasketch`: equal results, the check of the compiled sketches, and its place in the fingerprint."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.store.manifest import Folder, Manifest
from tasks.core import engine_check
from tasks.dedup import datasketch_engine, minhash, shingles
from tasks.dedup.bands import with_bands
from tasks.dedup.exact import run_starts
from tasks.dedup.minhash import sketch_texts
from tasks.dedup.step import CHECK_BYTES, DedupSettings
from tests.tasks.corpus import content_of, read_jsonl, real_texts, row
from tests.tasks.dedup.dedup_helpers import run

CHOICES = [
    with_bands(DedupSettings()),
    with_bands(DedupSettings(shingle="characters", normalise=False, seed=7, sketch_characters=300, threshold=0.6)),
    DedupSettings(num_bands=1, rows_per_band=1, ngram=1),
]


def by_datasketch(chosen: DedupSettings) -> DedupSettings:
    return chosen.model_copy(update={"engine": "datasketch"})


def similar(texts: list[str]) -> list[dict[str, Any]]:
    """Each text, an exact copy, and one with another end."""
    return [row(text, f"http://h/{n}/{k}") for n, t in enumerate(texts) for k, text in enumerate((t, t, f"{t} end"))]


@given(st.lists(st.text() | st.text(st.sampled_from("ab cd. ßİ語\u00ad")), max_size=5), st.sampled_from(CHOICES))
@settings(deadline=None, max_examples=60)
def test_sketches_and_shingles_are_equal(texts: list[str], chosen: DedupSettings) -> None:
    column, plain = pa.array(texts, pa.large_string()), by_datasketch(chosen)
    ours, theirs = sketch_texts(column, chosen), sketch_texts(column, plain)
    assert ours.keys() == theirs.keys() and all(ours[name].equals(theirs[name]) for name in ours)
    one, other = shingles.shingle_sets(column, chosen), datasketch_engine.shingle_sets(column, plain)
    assert one.values.tolist() == other.values.tolist() and one.starts.tolist() == other.starts.tolist()


@given(st.lists(st.sampled_from([0, 1, 2**32, 2**32 + 1, 2**64 - 1, 2**63]), max_size=30))
def test_buckets_are_those_of_equal_hashes(values: list[int]) -> None:
    keys = np.array(values, dtype=np.uint64)
    order, starts = datasketch_engine.buckets(keys)
    ours = np.argsort(keys, kind="stable")
    expected = np.split(ours, run_starts(keys[ours])[1:-1])
    assert sorted(b.tolist() for b in np.split(order, starts[1:-1])) == sorted(b.tolist() for b in expected)


def same_files(one: tuple[Folder, Manifest], other: tuple[Folder, Manifest]) -> None:
    assert content_of(*one) == content_of(*other)
    names = content_of(*one)
    assert any(name.startswith("clusters/") for name in names) and any(name.startswith("pairs/") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [CHOICES[0], CHOICES[1], DedupSettings(bucket_pivots=2, policy="connected")])
def test_the_engine_changes_no_byte(tmp_path: Path, open_data: Path, chosen: DedupSettings) -> None:
    rows = similar(real_texts(open_data)[::5])
    ours = run(tmp_path / "ours", rows, chosen, 60)
    assert ours[1].outcome.facts["clusters"] > 40
    same_files(ours, run(tmp_path / "theirs", rows, by_datasketch(chosen), 60))


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(DedupSettings(), id="default", marks=pytest.mark.exhaustive),
        pytest.param(DedupSettings(parity="megatron"), id="megatron", marks=pytest.mark.exhaustive),
    ],
)
def test_clusters_of_the_planted_duplicates_are_equal(real_data: Path, tmp_path: Path, chosen: DedupSettings) -> None:
    rows = [row(d["text"], d["url"], d["id"]) for d in read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz")]
    ours = run(tmp_path / "ours", rows, chosen, 700)
    assert ours[1].outcome.facts["clusters"] > 200
    same_files(ours, run(tmp_path / "theirs", rows, by_datasketch(chosen), 700))


def test_the_check_is_in_the_manifest_and_only_the_other_engine_in_the_fingerprint(
    tmp_path: Path, open_data: Path
) -> None:
    rows = similar(real_texts(open_data)[:10])
    (_, ours), (_, theirs) = (
        run(tmp_path / engine, rows, DedupSettings(engine=engine)) for engine in ("compiled", "datasketch")
    )
    assert ours.outcome.facts["engine_checked"] == 30 and "engine_mismatches" not in ours.outcome.facts
    assert "engine" not in ours.parameters and ours.versions.keys() == {"unicodedata"}
    assert "engine_checked" not in theirs.outcome.facts
    assert theirs.parameters["engine"] == "datasketch" and theirs.versions.keys() == {"datasketch", "unicodedata"}
    assert ours.fingerprint != theirs.fingerprint and ours.content == theirs.content


def test_sketches_that_differ_are_not_used(
    tmp_path: Path, open_data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = similar(real_texts(open_data)[::25])
    expected = run(tmp_path / "right", rows)
    honest = minhash.sign

    def wrong(*arguments: Any) -> Any:
        signatures, units = honest(*arguments)
        signatures[0] += np.uint32(1)
        return signatures, units

    monkeypatch.setattr(minhash, "sign", wrong)
    with caplog.at_level(logging.WARNING, "gpt2train"):
        found = run(tmp_path / "wrong", rows)
    assert f"differ for 1 of {len(rows)} documents" in caplog.text and "using datasketch" in caplog.text
    assert found[1].outcome.facts["engine_mismatches"] == 1
    assert found[1].fingerprint == expected[1].fingerprint
    same_files(found, expected)


def test_the_sample_is_bounded(tmp_path: Path, open_data: Path) -> None:
    rows = [row(text * 40, f"http://h/{n}") for n, text in enumerate(real_texts(open_data))]
    sizes = []
    honest = engine_check.sample_texts

    def measured(*arguments: Any) -> list[str]:
        texts = honest(*arguments)
        sizes.append(sum(len(text.encode()) for text in texts))
        return texts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_check, "sample_texts", measured)
        run(tmp_path, rows, per_shard=10)
    assert 0 < sizes[0] <= CHECK_BYTES
