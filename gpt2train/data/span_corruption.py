"""Span corruption and prefix language modelling, the objectives of T5, as functions of one sample.

Source: Raffel et al. 2020, sections 3.1.4 and 3.2.3, in the form of the published code (`random_spans_noise_mask`,
`noise_span_to_unique_sentinel`, `random_spans_helper`, `random_prefix_noise_mask`). Spans of tokens are noise; in the
input a sentinel stands for each of them, and the target has the spans, each behind its sentinel. Both end with the
token that ends a text. The choice is a function of seed and index of the sample alone.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from gpt2train.config import TrainSettings
from gpt2train.model.families import MODELS
from gpt2train.model.objectives import SpanCorruptionOptions
from gpt2train.model.shape import PADDING


def fitting_length(settings: TrainSettings) -> int:
    """Tokens of a sample: as many as fill the encoder, or for prefix language modelling the longer sequence.

    Raises:
        ValueError: the decoder is too short for the targets, the encoder for one span, or there are more spans than
            sentinels.
    """
    options = SpanCorruptionOptions.model_validate(settings.objective.options)
    inputs, targets = settings.model.context, MODELS[settings.model.family].lengths(settings.model.shape(PADDING))[1]
    if options.task == "prefix":
        if min(inputs, targets) < 2:
            raise ValueError(f"an encoder of {inputs} and a decoder of {targets} tokens are too short for a text")
        return inputs
    density, mean_span = options.noise_density, options.mean_span
    length = sample_length(inputs, density, mean_span)
    if not length:
        raise ValueError(f"model.context {inputs} is too short for a span and its sentinel; raise it")
    if (needed := corrupted_lengths(length, density, mean_span)[1]) > targets:
        raise ValueError(
            f"the spans of a sample of {length} tokens take {needed} tokens, more than decoder_context {targets}; "
            "raise model.options.decoder_context, or lower model.context or objective.options.noise_density"
        )
    if (spans := span_count(length, density, mean_span)) > options.sentinel_count:
        raise ValueError(
            f"a sample of {length} tokens has {spans} spans, more than the {options.sentinel_count} sentinels of "
            "objective.options.sentinel_count; raise it, or objective.options.mean_span"
        )
    return length


def noise_count(length: int, density: float) -> int:
    """Tokens of a sample that are noise; one at least, and never all."""
    return min(max(round(length * density), 1), length - 1)


def span_count(length: int, density: float, mean_span: float) -> int:
    """Spans of noise of a sample, as many as sentinels."""
    noise = noise_count(length, density)
    # Spans are not empty, nor is what lies between two of them.
    return min(max(round(noise / mean_span), 1), noise, length - noise)


def corrupted_lengths(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """Lengths of input and target of a sample of `length` tokens, with sentinels and the end token."""
    noise, spans = noise_count(length, density), span_count(length, density, mean_span)
    return length - noise + spans + 1, noise + spans + 1


@cache  # a plan checks the settings of a thousand layouts, each at 10 ms
def sample_length(inputs: int, density: float, mean_span: float) -> int:
    """Largest number of tokens of a sample whose input has at most `inputs` tokens; 0 if there is none of two tokens.

    With the published values 1,024 are filled by 1,137 tokens.
    """
    length = 1
    while corrupted_lengths(length + 1, density, mean_span)[0] <= inputs:
        length += 1
    return length if length > 1 else 0


def random_numbers(seed: int, index: int, count: int) -> np.ndarray:
    """Independent random numbers, uint64 [count], that depend on seed and index alone, on every release of numpy."""
    return np.asarray(np.random.Philox(key=[seed, index]).random_raw(count))


def random_segments(items: int, segments: int, numbers: np.ndarray) -> np.ndarray:
    """Lengths of a uniformly random division of `items` into `segments` that are not empty, int64 [segments].

    Args:
        items: number of items, at least `segments`.
        segments: number of segments.
        numbers: random numbers, at least `items - 1`.
    """
    # Each subset of the places between two items is equally likely.
    cuts = np.sort(np.argsort(numbers[: items - 1], kind="stable")[: segments - 1]) + 1
    return np.diff(np.concatenate(([0], cuts, [items])))


def noise_mask(length: int, density: float, mean_span: float, seed: int, index: int) -> np.ndarray:
    """Mask of the noise of a sample, bool [length]: spans of random lengths at random places, the first token not.

    Args:
        length: tokens of the sample, at least 2.
        density: share of the tokens that are noise.
        mean_span: mean length of a span.
        seed: seed of the run.
        index: index of the sample.
    """
    noise, spans = noise_count(length, density), span_count(length, density, mean_span)
    numbers = random_numbers(seed, index, length)
    kept = random_segments(length - noise, spans, numbers[noise:])
    hidden = random_segments(noise, spans, numbers[:noise])
    return np.repeat(np.tile([False, True], spans), np.stack((kept, hidden), 1).reshape(-1))


def replace_spans(tokens: np.ndarray, mask: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
    """Replace each run of masked tokens by one sentinel, the first run by the first.

    Args:
        tokens: int64 [length].
        mask: bool [length].
        sentinels: token ids, at least one for each run.
    """
    first = mask & ~np.concatenate(([False], mask[:-1]))
    replaced = tokens.copy()
    replaced[first] = np.asarray(sentinels, dtype=tokens.dtype)[: first.sum()]
    return replaced[~mask | first]


def corrupt(tokens: np.ndarray, mask: np.ndarray, sentinels: Sequence[int], end: int) -> tuple[np.ndarray, np.ndarray]:
    """Input and target of a sample.

    Args:
        tokens: int64 [length].
        mask: noise, bool [length].
        sentinels: token ids, at least one for each span.
        end: token that ends a text.
    """
    return (
        np.append(replace_spans(tokens, mask, sentinels), end),
        np.append(replace_spans(tokens, ~mask, sentinels), end),
    )


def prefix_length(length: int, inputs: int, targets: int, seed: int, index: int) -> int:
    """Tokens of a sample that are the prefix: uniformly random, so that both parts, with their end, fit.

    Args:
        length: tokens of the sample.
        inputs: length of the encoder's sequence.
        targets: length of the decoder's sequence.
        seed: seed of the run.
        index: index of the sample.
    """
    least, most = max(1, length - targets + 1), min(length, inputs) - 1
    return least + int(random_numbers(seed, index, 1)[0] % np.uint64(most - least + 1))
