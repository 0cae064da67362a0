"""Packed samples: nothing lost, nothing twice, and everything from one integer."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.indexed import IndexedWriter
from gpt2train.data.samples import Epoch, Samples, permutation, samples_in
from gpt2train.errors import UserError

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda lengths: sum(lengths) > 8)


def epoch_of(lengths: list[int], context: int, seed: int | None, number: int) -> Epoch:
    sizes = np.array(lengths, dtype=np.int64)
    return Epoch(np.cumsum(sizes) - sizes, sizes, context, seed, number)


def write(prefix: Path, documents: list[list[int]]) -> Path:
    with IndexedWriter(prefix, "<u2") as writer:
        writer.add_all(documents)
    return prefix


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 9))
def test_permutation_is_one_and_is_seeded(count: int, seed: int, epoch: int) -> None:
    order = permutation(count, seed, epoch, 0)
    assert sorted(order.tolist()) == list(range(count))
    assert (order == permutation(count, seed, epoch, 0)).all()
    assert count < 20 or (order != permutation(count, seed, epoch, 1)).any()


def test_permutation_stays_the_same_over_versions() -> None:
    assert permutation(8, 1234, 0, 0).tolist() == [1, 6, 2, 0, 3, 5, 7, 4]


@given(LENGTHS, st.integers(1, 8), st.integers(0, 99), st.integers(0, 3))
def test_each_token_of_an_epoch_is_a_target_once_but_the_tail(
    lengths: list[int], context: int, seed: int, number: int
) -> None:
    epoch = epoch_of(lengths, context, seed, number)
    places = epoch.places(np.arange(len(epoch.order)))
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


def test_epochs_are_shuffled_anew() -> None:
    first, second = (epoch_of([10] * 30, 4, 7, number).places(np.arange(70)) for number in (0, 1))
    assert (first != second).any()


def test_without_a_seed_the_order_is_that_of_the_file() -> None:
    epoch = epoch_of([5, 0, 7], 3, None, 0)
    assert epoch.places(np.arange(3)).tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_counting_rule_of_the_reference() -> None:
    # Megatron's tutorial: 177 epochs of its training documents are 80,118 samples of 1,024 and one epoch is 452, which
    # only a corpus of 463,508 to 463,513 tokens gives.
    assert samples_in(463_508, 1024) == samples_in(463_513, 1024) == 452
    assert samples_in(177 * 463_508, 1024) == samples_in(177 * 463_513, 1024) == 80_118
    assert samples_in(1025, 1024) == 1 and samples_in(1024, 1024) == 0 and samples_in(0, 1024) == 0


@settings(max_examples=25)
@given(LENGTHS, st.integers(1, 6), st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_a_batch_is_its_samples_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, wanted: list[int]
) -> None:
    counter = iter(range(10_000))
    prefix = write(tmp_path_factory.mktemp("s") / "t", [[next(counter) for _ in range(n)] for n in lengths])
    batch = Samples(prefix, context, 10_000, seed=3).batch(wanted)
    # A fresh loader per index, as after a restart: the index alone decides.
    alone = [Samples(prefix, context, 10_000, seed=3).batch([index])[0] for index in wanted]
    assert batch.dtype == np.int64 and (batch == np.stack(alone)).all()


def test_a_token_outside_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    prefix = write(tmp_path / "t", [[1, 2, 3, 99], [4] * 20])
    samples = Samples(prefix, 4, 99, seed=0)
    samples.check_vocabulary(1, 2)  # the second half of the file is fine
    with pytest.raises(UserError, match=r"t\.bin holds the token 99, but the vocabulary has 99"):
        samples.check_vocabulary(0, 2)
    with pytest.raises(UserError, match="another tokenizer"):
        samples.batch(range(samples.per_epoch))


def test_too_few_tokens_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds 3 tokens, fewer than one sample of 9"):
        Samples(write(tmp_path / "t", [[1, 2, 3]]), 8, 10, seed=0)
