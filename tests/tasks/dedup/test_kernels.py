"""Compiled kernels against reference implementations, signatures against datasketch, and the engine `datasketch`."""

import logging
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.text_units import UNSPACED, spaced_word
from gpt2train.store.manifest import Folder, Manifest
from tasks.core import engine_check
from tasks.dedup import datasketch_engine, kernels, minhash, reference, shingles
from tasks.dedup.bands import with_bands
from tasks.dedup.exact import run_starts
from tasks.dedup.minhash import permutations, sign, sketch_texts
from tasks.dedup.shingles import Sets, Texts, content_hashes, folded, shingle_sets
from tasks.dedup.step import CHECK_BYTES, DedupSettings
from tasks.dedup.unicode_tables import KNOWN, SINGLE, SPACE, TABLED, WORD, build_tables
from tasks.dedup.verify import compare, similarities
from tests.tasks.corpus import content_of, real_texts, row
from tests.tasks.dedup.dedup_helpers import run

# Letters that change their number, fold to several, compose, reorder, are no letters, or are white space only to some.
HARD = (
    "aZ09_क\u093f\u094d \t\n\x0b\x1c\x1f\x85\xa0é\u0301\u0327ßẞİıſﬁ½ªµ…·’“—™①Ⅷ㎏㍿ﷺ\u1680\u2003\u2028\u3000\u200b\u00ad"
    "한\u1112\u1161\u11ab語ﾊﾟ\u3099ゔ\U0001d15e𝔸𝟗😀👩\u200d🚀🅰\u0345ΐς\u1fb3\u0f73\U000e0041\ufeff\x00"
    "中文々ひｱทีกໜကក៉\u0e33\u0e3f。"
    "\u034f\u115f\u1160\u17b4\u180e\u2060\u2066\u3164\ufe0f\uffa0\U000e0100\U00013430"
)
TEXTS = st.lists(st.text() | st.text(st.sampled_from(HARD)) | st.text(st.sampled_from("ab cd. ")), max_size=6)
SHINGLES = st.sampled_from(["words", "characters"])


def column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def strings(texts: Texts) -> list[str]:
    return [bytes(texts.data[a:b]).decode() for a, b in pairwise(texts.offsets.tolist())]


@given(TEXTS)
@settings(deadline=None)
def test_folding_equals_python(texts: list[str]) -> None:
    assert strings(folded(column(texts), DedupSettings())) == [reference.folded(text) for text in texts]
    assert strings(folded(column(texts), DedupSettings(normalise=False))) == texts


def test_every_code_point_folds_as_python_does() -> None:
    """Alone, and between others that could compose with it."""
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(letters[start : start + 997]) for start in range(0, len(letters), 997)]
    tabled = [chr(code) for span in TABLED for code in span]
    texts += [f"e{letter}a {letter}\u0301{letter}" for letter in tabled] + tabled
    assert strings(folded(column(texts), DedupSettings())) == [reference.folded(text) for text in texts]


def test_the_table_classifies_letters_as_python_does() -> None:
    table, in_words = build_tables(), re.compile(spaced_word())
    for code in (*range(0x3200), *range(0xD7F0, 0xE010), *range(0x1F000, 0x20010), 0x10FFFF):
        letter, kind = chr(code), int(table.kinds[code])
        assert bool(kind & WORD) == (letter.isalnum() or bool(in_words.match(letter))), hex(code)
        assert bool(kind & SPACE) == letter.isspace(), hex(code)
        assert bool(kind & SINGLE) == (UNSPACED.match(letter) is not None), hex(code)
    assert all(table.kinds[ord(letter)] & KNOWN for letter in "aéßЖλ…“—€½\xa0😀")
    assert not any(table.kinds[ord(letter)] & KNOWN for letter in "\u0301\u1161語한")


@given(TEXTS, st.integers(1, 7), SHINGLES)
@settings(deadline=None)
def test_shingles_equal_the_reference_implementation(texts: list[str], ngram: int, shingle: Any) -> None:
    chosen = with_bands(DedupSettings(shingle=shingle, ngram=ngram))
    sets = shingle_sets(column(texts), chosen)
    plainly = [reference.shingle_hashes(reference.folded(text), shingle == "words", ngram) for text in texts]
    assert [some.tolist() for some in np.split(sets.values, sets.starts[1:-1])][: len(texts)] == [
        sorted(set(hashes)) for hashes in plainly
    ]


@given(TEXTS, st.integers(1, 6), SHINGLES, st.integers(1, 40))
@settings(deadline=None)
def test_signatures_of_texts_are_those_of_their_shingles(
    texts: list[str], ngram: int, shingle: Any, limit: int
) -> None:
    chosen = with_bands(DedupSettings(shingle=shingle, ngram=ngram, sketch_characters=limit, seed=7))
    signed = sign(folded(column(texts), chosen), chosen)
    for text, signature, units in zip(texts, *signed, strict=True):
        head = reference.folded(text)[:limit]
        hashes = reference.shingle_hashes(head, shingle == "words", ngram)
        assert units == len(reference.unit_hashes(head, shingle == "words"))
        low = [number & reference.MASK32 for number in hashes]
        assert signature.tolist() == (datasketch_signature(low, 128, 7) if low else [reference.MASK32] * 128)


def datasketch_signature(values: list[int], count: int, seed: int) -> list[int]:
    sketch = MinHash(num_perm=count, seed=seed, scheme="affine32", hashfunc=lambda value: value)
    sketch.update_batch(values)
    return sketch.hashvalues.tolist()


@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40), min_size=1, max_size=10),
    st.integers(1, 130),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=80)
def test_signatures_equal_datasketch(documents: list[list[int]], count: int, seed: int) -> None:
    ours = np.full((len(documents), count), kernels.HIGH, dtype=np.uint32)
    for signature, one in zip(ours, documents, strict=True):
        kernels.sign(np.array(one, dtype=np.uint32), 0, len(one), *permutations(count, seed), signature)
    assert ours.tolist() == [datasketch_signature(one, count, seed) for one in documents]


def test_bands_agree_exactly_where_the_rows_do() -> None:
    random = np.random.default_rng(0)
    signatures = random.integers(0, 2, (200, 12), dtype=np.uint32)
    bands = kernels.band_hashes(signatures, 4, 3)
    rows = signatures.reshape(200, 4, 3)
    for band in range(4):
        same = (rows[:, None, band] == rows[None, :, band]).all(axis=2)
        assert ((bands[band][:, None] == bands[band][None, :]) == same).all()


def test_short_documents_have_no_bands() -> None:
    chosen = with_bands(DedupSettings())
    sketch = sketch_texts(column(["one two three four", "a b c d e", "", "a b c d e f g"]), chosen)
    assert sketch["units"].to_pylist() == [4, 5, 0, 7]
    assert sketch["band_00"].is_valid().to_pylist() == sketch["band_15"].is_valid().to_pylist() == [False, True] * 2
    assert len(sketch_texts(column([]), chosen)["band_15"]) == 0


@given(
    st.lists(st.sets(st.integers(0, 30), max_size=20), min_size=1, max_size=5),
    st.lists(st.sets(st.integers(0, 30), max_size=20), min_size=1, max_size=5),
)
@settings(deadline=None)
def test_similarities_equal_sets(ones: list[set[int]], others: list[set[int]]) -> None:
    pairs = np.array([(a, b) for a in range(len(ones)) for b in range(len(others))])
    overlap = compare(packed(ones), packed(others), pairs[:, 0], pairs[:, 1])
    for kind in ("union", "min", "max"):
        for (a, b), found in zip(pairs.tolist(), similarities(overlap, DedupSettings(jaccard=kind)), strict=True):
            one, other = ones[a], others[b]
            size = {"min": min(len(one), len(other)), "max": max(len(one), len(other)), "union": len(one | other)}[kind]
            assert found == (len(one & other) / size if size else 0.0)


def packed(sets: list[set[int]]) -> Sets:
    values = np.array([value for one in sets for value in sorted(one)], dtype=np.uint64)
    return Sets(values, np.cumsum([0, *map(len, sets)]))


def test_the_content_hash_ignores_case_unicode_forms_and_space() -> None:
    same = content_hashes(folded(column(["Ｈello\n\tWORLD ", "hello world", "C++", "C"]), DedupSettings())).to_pylist()
    assert same[0] == same[1] and len(set(same)) == 3
    raw = content_hashes(folded(column(["A", "a", "a"]), DedupSettings(normalise=False))).to_pylist()
    assert raw[0] != raw[1] == raw[2]


@pytest.mark.parametrize("mark", ["\xad", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u200e", "͏", "️", "󠄁"])
def test_invisible_characters_are_ignored(mark: str) -> None:
    plainly = "Reading a book beside the harbour, the captain waited for Ω and the 語 of 7 letters\n"
    marked = "".join(letter + mark * (place % 3 == 0) for place, letter in enumerate(plainly)) + mark
    for shingle in ("words", "characters"):
        chosen = with_bands(DedupSettings(shingle=shingle))
        assert sketch_texts(column([plainly]), chosen) == sketch_texts(column([marked]), chosen)
    assert strings(folded(column([marked]), DedupSettings(normalise=False))) == [marked]


def test_a_slice_of_a_column_is_read_at_its_offset() -> None:
    texts = ["one two three four five", "Six seven EIGHT nine ten", "x", "é" * 9]
    whole, part = column(texts), column(texts)[1:3]
    for chosen in map(with_bands, (DedupSettings(), DedupSettings(normalise=False, shingle="characters"))):
        assert strings(folded(part, chosen)) == strings(folded(whole, chosen))[1:3]
        assert sketch_texts(part, chosen)["band_03"].equals(sketch_texts(whole, chosen)["band_03"][1:3])


CHOICES = [
    with_bands(DedupSettings()),
    with_bands(DedupSettings(shingle="characters", normalise=False, seed=7, sketch_characters=300, threshold=0.6)),
    DedupSettings(num_bands=1, rows_per_band=1, ngram=1),
]


def by_datasketch(chosen: DedupSettings) -> DedupSettings:
    return chosen.model_copy(update={"engine": "datasketch"})


def similar(texts: list[str]) -> list[dict[str, Any]]:
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


def test_the_engine_changes_the_fingerprint_and_no_byte(tmp_path: Path, open_data: Path) -> None:
    rows = similar(real_texts(open_data)[:10])
    for name, chosen in (("raw", CHOICES[1]), ("connected", DedupSettings(bucket_pivots=2, policy="connected"))):
        both = [run(tmp_path / f"{name}-{one.engine}", rows, one, 4) for one in (chosen, by_datasketch(chosen))]
        same_files(*both)
    both = [run(tmp_path / one.engine, rows, one) for one in (DedupSettings(), DedupSettings(engine="datasketch"))]
    same_files(*both)
    ours, theirs = (manifest for _, manifest in both)
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
    calls = engine_check.CHECKS  # with one wrong document each
    assert f"differ for {calls} of {len(rows)} documents" in caplog.text and "using datasketch" in caplog.text
    assert found[1].outcome.facts["engine_mismatches"] == calls
    assert found[1].fingerprint == expected[1].fingerprint
    same_files(found, expected)


def test_the_sample_is_bounded(tmp_path: Path, open_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, honest, samples = real_texts(open_data), engine_check.sample_texts, list[list[str]]()
    monkeypatch.setattr(engine_check, "sample_texts", lambda *given: samples.append(honest(*given)) or samples[-1])
    run(tmp_path, [row(text * 40, f"http://h/{n}") for n, text in enumerate(texts)], per_shard=10)
    assert 0 < sum(len(text.encode()) for text in samples[0]) <= CHECK_BYTES
