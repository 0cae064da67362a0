"""Span corruption: a sample comes back from input and target; counts, lengths and distributions as published."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.span_corruption import (
    corrupt,
    corrupted_lengths,
    noise_count,
    noise_mask,
    prefix_length,
    sample_length,
    span_count,
)

END, TOP = 1, 999
SENTINELS = [TOP - number for number in range(400)]  # counting down from the top of the vocabulary
densities = st.floats(0.01, 0.95)
means = st.floats(1, 20)


def restored(inputs: list[int], targets: list[int], sentinels: list[int]) -> list[int]:
    """The sample of an input and a target, span by span, without knowledge of the mask."""
    number, spans = {token: number for number, token in enumerate(sentinels)}, {}
    for token in targets[:-1]:
        if token in number:
            spans[token] = current = []
        else:
            current.append(token)
    return [piece for token in inputs[:-1] for piece in (spans[token] if token in number else [token])]


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 400), densities, means, st.integers(0, 2**53 - 1), st.integers(0, 2**40))
def test_a_sample_comes_back_from_input_and_target(
    length: int, density: float, mean: float, seed: int, index: int
) -> None:
    tokens = np.random.default_rng(index).integers(2, 500, length)
    mask = noise_mask(length, density, mean, seed, index)
    inputs, targets = corrupt(tokens, mask, SENTINELS, END)
    assert restored(inputs.tolist(), targets.tolist(), SENTINELS) == tokens.tolist()
    spans = span_count(length, density, mean)
    for part in (inputs, targets):
        assert part[-1] == END
        assert part[part >= 500].tolist() == SENTINELS[:spans]  # each once, in order, counting down
    assert targets[0] == TOP and inputs[0] == tokens[0] and mask.sum() == noise_count(length, density)
    assert (len(inputs), len(targets)) == corrupted_lengths(length, density, mean)
    again = noise_mask(length, density, mean, seed, index)
    assert np.array_equal(mask, again)


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 3000), st.floats(0.01, 0.5), means)
def test_the_longest_sample_that_fits_is_taken(inputs: int, density: float, mean: float) -> None:
    length = sample_length(inputs, density, mean)
    assert length and corrupted_lengths(length, density, mean)[0] <= inputs
    assert corrupted_lengths(length + 1, density, mean)[0] > inputs


def test_published_lengths() -> None:
    """T5's 512 tokens take samples of 568 and give targets of 114."""
    assert sample_length(512, 0.15, 3.0) == 568
    assert corrupted_lengths(568, 0.15, 3.0) == (512, 114)
    assert corrupted_lengths(sample_length(1024, 0.15, 3.0), 0.15, 3.0)[0] == 1024


def test_masks_are_those_of_the_published_algorithm() -> None:
    """Every segmentation of a small sample is equally likely, as a shuffle of the segments' beginnings gives it."""
    counts: dict[bytes, int] = {}
    for index in range(6000):
        mask = noise_mask(8, 0.5, 2.0, 7, index)  # 4 kept and 4 noise tokens, 2 spans each: 3 x 3 masks
        counts[mask.tobytes()] = counts.get(mask.tobytes(), 0) + 1
    assert len(counts) == 9
    assert all(abs(count - 6000 / 9) < 5 * (6000 / 9) ** 0.5 for count in counts.values())


def test_another_index_or_seed_gives_another_mask() -> None:
    masks = [noise_mask(200, 0.15, 3.0, seed, index).tobytes() for seed in range(5) for index in range(40)]
    assert len(set(masks)) == 200


@pytest.mark.parametrize(("length", "inputs", "targets"), [(24, 24, 12), (24, 24, 24), (30, 20, 40), (2, 3, 3)])
def test_a_prefix_leaves_room_for_both_ends(length: int, inputs: int, targets: int) -> None:
    found = {prefix_length(length, inputs, targets, 3, index) for index in range(2000)}
    assert found == set(range(max(1, length - targets + 1), min(length, inputs)))
