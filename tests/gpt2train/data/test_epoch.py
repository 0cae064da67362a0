"""Epochs: each token once, counted as the reference counts."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt2train.data import epoch as module
from gpt2train.data.epoch import Epoch, permutation, samples_in
from gpt2train.data.samples import Samples
from gpt2train.errors import UserError
from tests.gpt2train.data.token_files import write_documents

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda lengths: sum(lengths) > 8)


def epoch_of(lengths: list[int], context: int, seed: int | None, number: int) -> Epoch:
    return Epoch.build(np.cumsum([0, *lengths]), context, seed, number)


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 9))
def test_a_permutation_is_complete_and_depends_on_the_seed(count: int, seed: int, epoch: int) -> None:
    order = permutation(count, seed, epoch, 0)
    assert sorted(order.tolist()) == list(range(count))
    assert (order == permutation(count, seed, epoch, 0)).all()
    assert count < 20 or (order != permutation(count, seed, epoch, 1)).any()


def test_permutations_do_not_change_between_versions() -> None:
    assert permutation(8, 1234, 0, 0).tolist() == [1, 6, 2, 0, 3, 5, 7, 4]


@given(st.integers(0, 200), st.integers(1, 20))
@example(463_508, 1024)  # tokens of Megatron-LM's tutorial, whose log has 452 samples an epoch
@example(463_511, 1024)
def test_samples_are_counted_as_in_an_explicit_stream(tokens: int, context: int) -> None:
    """Of Megatron-LM's rule: a sample needs `context` tokens and one more."""
    assert samples_in(tokens, context) == sum(start + context < tokens for start in range(0, tokens, context))
    assert tokens < 463_508 or samples_in(tokens, context) == 452


@given(LENGTHS, st.integers(1, 8), st.integers(0, 99), st.integers(0, 3))
def test_each_token_of_an_epoch_is_a_target_once_but_the_tail(
    lengths: list[int], context: int, seed: int, number: int
) -> None:
    epoch = epoch_of(lengths, context, seed, number)
    places, numbers = epoch.locate(np.arange(len(epoch.order)))
    targets = places[:, 1:].ravel().tolist()
    total, count = sum(lengths), samples_in(sum(lengths), context)
    assert places.shape == (count, context + 1)
    assert len(set(targets)) == len(targets) == count * context
    assert set(targets) <= set(range(total)) and total - 1 - len(targets) < context
    # In stream order neighbours share one token, and documents stay whole: a plain loop finds the same stream.
    starts = np.cumsum([0, *lengths])
    documents = permutation(len(lengths), seed, number, 0)
    stream = [place for d in documents for place in range(starts[d], starts[d + 1])]
    for row, slot in zip(places.tolist(), epoch.order.tolist(), strict=True):
        assert row == stream[slot * context : slot * context + context + 1]
    holders = np.searchsorted(starts, places, side="right")
    assert ((np.diff(holders) != 0) == (np.diff(numbers) != 0)).all()


def test_epochs_are_shuffled_anew_and_only_with_a_seed() -> None:
    first, second = (epoch_of([10] * 30, 4, 7, number) for number in (0, 1))
    assert (first.locate(np.arange(70))[0] != second.locate(np.arange(70))[0]).any()
    places = epoch_of([5, 0, 7], 3, None, 0).locate(np.arange(3))[0]
    assert places.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_equal_sort_keys_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Philox:
        def __init__(self, _: object) -> None: ...

        def random_raw(self, count: int) -> np.ndarray:
            return np.arange(count, dtype=np.uint64) % 3

    monkeypatch.setattr(module.np.random, "Philox", Philox)
    assert permutation(600, 1).tolist() == sorted(range(600), key=lambda n: n % 3)


def test_files_that_no_sample_can_come_from_are_refused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "t", [[1, 2, 3, 99], [4] * 20])
    samples = Samples(prefix, 4, 99, seed=0)
    samples.check_vocabulary(1, 2)  # the second half of the file is fine
    with pytest.raises(UserError, match=r"t\.bin contains the token id 99, but the vocabulary has 99"):
        samples.check_vocabulary(0, 2)
    with pytest.raises(UserError, match="another tokenizer"):
        samples.read(range(samples.per_epoch))
    with pytest.raises(UserError, match="holds 24 tokens, fewer than one sample of 25"):
        Samples(prefix, 24, 100, seed=0)


@settings(max_examples=25)
@given(LENGTHS, st.integers(1, 6), st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_document_numbers_change_where_documents_do(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, wanted: list[int]
) -> None:
    # Every token is the number of its document, so that the tokens show where documents change.
    numbered = [[number] * length for number, length in enumerate(lengths)]
    samples = Samples(write_documents(tmp_path_factory.mktemp("s") / "t", numbered), context, 100, seed=3)
    tokens, documents = samples.read(wanted)
    assert ((np.diff(tokens) != 0) == (np.diff(documents) != 0)).all() and (np.diff(documents) >= 0).all()
    assert samples.document_ends(wanted) == int((np.diff(documents) != 0).sum())
