"""The fast kernels equal their plain twins, and the signatures equal datasketch's."""

import hashlib
import re
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import (
    WordHashes,
    content_hash,
    jaccard,
    ngram_hashes,
    normalise,
    shingle_set,
    shingles_of_many,
    word_hashes,
)
from tasks.dedup.sketch import AT_ONCE, band_hashes, minhash, sketch_words

WORDS = st.lists(st.sampled_from(["a", "b", "the", "straße", "x1", "é", "ﬁne"]), max_size=30)
MASK = 2**64 - 1


def plain_mix(number: int) -> int:
    number ^= number >> 33
    number = number * 0xFF51AFD7ED558CCD & MASK
    number ^= number >> 33
    number = number * 0xC4CEB9FE1A85EC53 & MASK
    return number ^ number >> 33


def plain_shingles(text: str, ngram: int) -> list[int]:
    """n-gram hashes in order, one at a time in plain integers."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    numbers = [int.from_bytes(hashlib.blake2b(w.encode(), digest_size=8).digest(), "little") for w in words]
    result = []
    for start in range(len(numbers) - ngram + 1):
        total = 0
        for number in numbers[start : start + ngram]:
            total = (total * 0x9E3779B97F4A7C15 + number) & MASK
        result.append(plain_mix(total))
    return result


@given(st.text() | WORDS.map(" ".join), st.integers(1, 7))
@settings(deadline=None)
def test_shingles_equal_the_plain_twin(text: str, ngram: int) -> None:
    plain = plain_shingles(text, ngram)
    assert ngram_hashes(word_hashes(normalise(text), WordHashes()), ngram).tolist() == plain
    assert shingle_set(text, ngram, WordHashes()).tolist() == sorted(set(plain))


@given(st.lists(st.lists(st.integers(0, MASK), min_size=3, max_size=12), min_size=1, max_size=8), st.integers(1, 3))
@settings(deadline=None)
def test_many_documents_at_once_equal_one_by_one(documents: list[list[int]], ngram: int) -> None:
    words = [np.array(one, dtype=np.uint64) for one in documents]
    hashes, starts = shingles_of_many(words, ngram)
    bounds = [*starts.tolist(), len(hashes)]
    assert [hashes[a:b].tolist() for a, b in pairwise(bounds)] == [ngram_hashes(w, ngram).tolist() for w in words]


@given(st.sets(st.text(max_size=3), max_size=20), st.sets(st.text(max_size=3), max_size=20))
def test_jaccard_equals_sets(one: set[str], other: set[str]) -> None:
    cache = WordHashes()
    hashed = [np.unique(np.array([cache[word] for word in words], dtype=np.uint64)) for words in (one, other)]
    assert jaccard(*hashed) == (len(one & other) / len(one | other) if one | other else 0.0)


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
    starts = np.cumsum([0, *(len(one) for one in documents[:-1])])
    hashes = np.array([value for one in documents for value in one], dtype=np.uint32)
    ours = minhash(hashes, starts, count, seed)
    assert ours.dtype == np.uint32
    assert ours.tolist() == [datasketch_signature(one, count, seed) for one in documents]


@pytest.mark.parametrize(
    "lengths", [[1, AT_ONCE - 1, 1], [AT_ONCE, AT_ONCE], [3 * AT_ONCE + 5, 7], [5, 2 * AT_ONCE, 1]]
)
def test_documents_over_the_edges_of_a_piece(lengths: list[int]) -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(0, 2**32, length, dtype=np.uint32) for length in lengths]
    ours = minhash(np.concatenate(documents), np.cumsum([0, *lengths[:-1]]), 16, 1)
    assert ours.tolist() == [datasketch_signature(one.tolist(), 16, 1) for one in documents]


def test_bands_agree_exactly_where_the_rows_do() -> None:
    random = np.random.default_rng(0)
    signatures = random.integers(0, 2, (200, 12), dtype=np.uint32)
    bands = band_hashes(signatures, 4, 3)
    rows = signatures.reshape(200, 4, 3)
    for band in range(4):
        same = (rows[:, None, band] == rows[None, :, band]).all(axis=2)
        assert ((bands[:, None, band] == bands[None, :, band]) == same).all()


def test_short_documents_have_no_bands() -> None:
    words = [np.arange(n, dtype=np.uint64) for n in (4, 5, 0, 9)]
    bands, missing = sketch_words(words, DedupSettings())
    assert missing.tolist() == [True, False, True, False]
    assert not bands[missing].any() and bands[~missing].all()
    assert sketch_words([], DedupSettings())[0].shape == (0, 16)


def test_the_cache_of_words_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.dedup.shingles.MOST_WORDS", 3)
    cache = WordHashes()
    numbers = [cache[word] for word in "abcdefg"]
    assert len(cache) <= 3
    assert numbers == [WordHashes()[word] for word in "abcdefg"]


def test_content_hash_ignores_case_forms_and_space() -> None:
    assert content_hash(normalise("Ｈello\n\tWORLD ")) == content_hash(normalise("hello world"))
    assert content_hash(normalise("C++")) != content_hash(normalise("C"))
