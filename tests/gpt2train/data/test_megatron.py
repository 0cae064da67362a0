"""Megatron's counts, against its tutorial's log and a loop that builds the stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.epoch import samples_in
from tests.gpt2train.data.megatron_counts import JoinedEpochs, join_epochs


# 80,118 samples in 177 epochs, 79,665 of them in 176, 452 in one: only 463,508 to 463,511 tokens give that.
@pytest.mark.parametrize("tokens", [463_508, 463_511])
def test_the_sample_counts_equal_those_of_the_tutorial(tokens: int) -> None:
    assert join_epochs(tokens, 1024, 80_000) == JoinedEpochs(
        epochs=177, samples=80_118, per_epoch=452, main=79_665, last=335, separate=True
    )
    # Ours: the same number an epoch, each epoch alone.
    assert samples_in(tokens, 1024) == 452 and 177 * samples_in(tokens, 1024) == 80_004


def test_only_these_lengths_give_the_numbers_of_the_tutorial() -> None:
    counts = [join_epochs(tokens, 1024, 80_000) for tokens in (463_507, 463_512)]
    assert [(found.samples, found.main) for found in counts] == [(80_117, 79_665), (80_118, 79_666)]


def test_the_validation_samples_equal_those_of_the_tutorial() -> None:
    # 9 epochs, 110 samples each, 74 of the last: 960 samples of a set of 113,409 to 113,535 tokens.
    for tokens in (113_409, 113_535):
        found = join_epochs(tokens, 1024, 960)
        assert (found.epochs, found.per_epoch, found.last, found.separate) == (9, 110, 74, True)


@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 80))
def test_counts_equal_those_of_an_explicit_stream(tokens: int, context: int, samples: int) -> None:
    epochs = 0
    cut: list[list[int]] = []
    while len(cut) < samples:  # one more epoch until there are enough; a sample needs `context` tokens and one more
        epochs += 1
        stream = [place for _ in range(epochs) for place in range(tokens)]
        cut = [
            stream[start : start + context + 1]
            for start in range(0, len(stream), context)
            if start + context < len(stream)
        ]
    found = join_epochs(tokens, context, samples)
    assert (found.epochs, found.samples) == (epochs, len(cut))
    assert found.main < samples <= found.samples and found.main + found.last == samples
