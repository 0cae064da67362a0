"""Sampling of tokens: top-k, top-p, the distribution of draws, and independence of rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt2train.errors import RunError
from gpt2train.inference.sampling import restrict, rng_for, sample
from gpt2train.inference.sequence import TokenSequence, sample_next
from gpt2train.inference.settings import SamplingSettings
from gpt2train.training.sample_text import _draw

TINY = [5e-324, 1e-45, 1e-40, 1.2e-38]  # rounded to 0, subnormal, or the divisor of an infinite quotient in float32
TEMPERATURES = st.sampled_from(TINY) | st.floats(0, 100, exclude_min=True)


@given(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=30, unique=True), st.integers(1, 40))
def test_top_k_keeps_the_k_greatest(values: list[float], k: int) -> None:
    kept = restrict(torch.tensor([values]), k, [1.0])[0].isfinite()
    expected = sorted(values, reverse=True)[:k]
    assert [value for value, keep in zip(values, kept, strict=True) if keep] == [v for v in values if v in expected]


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=30, unique=True), st.floats(0.05, 0.999))
def test_top_p_keeps_the_fewest_that_reach_p(weights: list[int], p: float) -> None:
    probabilities = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    kept = restrict(probabilities.log().unsqueeze(0), 0, [p])[0].isfinite()
    total, expected = 0.0, set()
    for place in sorted(range(len(weights)), key=lambda i: -weights[i]):
        if total >= p - 1e-12:
            break
        expected.add(place)
        total += weights[place] / sum(weights)
    assert set(kept.nonzero().flatten().tolist()) == expected


@settings(max_examples=50)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40),
    st.sampled_from([0.0, 1e-300, 0.5, 1 - 2**-53]),
    st.integers(0, 5),
    st.floats(1e-30, 1),
    TEMPERATURES,
)
def test_a_drawn_token_is_among_the_allowed_ones(
    values: list[float], chance: float, k: int, p: float, temperature: float
) -> None:
    logits = torch.tensor([values])
    (token,) = sample(logits, [temperature], k, [p], [chance])
    scaled = (logits - logits.max()).double() / temperature
    # Rounding of the sums in float32 moves the edge of the nucleus by one token in some millions.
    assert restrict(scaled, k, [min(1.0, p * (1 + 1e-6))])[0, token].isfinite()


@settings(max_examples=50)
@given(st.lists(st.floats(-(2**99), 2**99, width=32), min_size=1, max_size=40), TEMPERATURES, st.integers(0, 99))
def test_a_small_temperature_draws_the_most_likely_token(values: list[float], temperature: float, seed: int) -> None:
    """In generation and in the samples of a training; with several of them, one of these."""
    logits = torch.tensor(values, dtype=torch.float64)
    drawn = [_draw(logits, temperature, torch.Generator().manual_seed(seed))]
    drawn += sample(logits.float()[None], [temperature], 0, [1.0], [seed / 100])
    distances = [float(logits.max() - logits[token]) for token in drawn]
    assert all(distance <= 750 * max(temperature, 2e-38) for distance in distances)  # exp(-750) is 0


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.0, 0.2]]).log().repeat(20_000, 1)
    stream = rng_for(0, 0)
    drawn = torch.tensor(sample(logits, [1.0] * 20_000, 0, [1.0] * 20_000, [stream.random() for _ in range(20_000)]))
    shares = torch.bincount(drawn, minlength=4) / 20_000
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.0, 0.2]), atol=0.012)  # 3.4 standard errors
    assert shares[2] == 0


def test_random_streams_are_distinct() -> None:
    names = [(seed, row, sample) for seed in range(3) for row in range(3) for sample in range(3)]
    assert len({rng_for(*name).random() for name in names}) == len(names)
    assert rng_for(1, 2, 0).random() == rng_for(1, 2).random()


SETTINGS = [
    SamplingSettings(),
    SamplingSettings(temperature=0),
    SamplingSettings(top_k=3, temperature=2),
    SamplingSettings(top_p=0.9, top_p_decay=0.5, top_p_bound=0.1, log_probs=True, top_log_probs=2),
    SamplingSettings(top_p=0.5, seed=4, log_probs=True),
]


@given(st.lists(st.sampled_from(range(len(SETTINGS))), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_row_in_a_batch_draws_as_it_does_alone(kinds: list[int], seed: int) -> None:
    steps = torch.randn(4, len(kinds), 50, generator=torch.Generator().manual_seed(seed)) * 2
    together = [TokenSequence([1], SETTINGS[kind], 100, prompt_index=row) for row, kind in enumerate(kinds)]
    alone = [TokenSequence([1], SETTINGS[kind], 100, prompt_index=row) for row, kind in enumerate(kinds)]
    for logits in steps:
        sample_next(together, logits)
        for row, sequence in enumerate(alone):
            sequence.sample_next(logits[row])
    assert [sequence.tokens for sequence in together] == [sequence.tokens for sequence in alone]
    assert [sequence.scores for sequence in together] == [sequence.scores for sequence in alone]


def test_top_p_decays_to_its_bound() -> None:
    # Five tokens of 0.2 less and less: p 0.75, 0.375, then 0.3 for good keep 4, 2 and 2 of them.
    logits = torch.tensor([0.2004, 0.2002, 0.2, 0.1998, 0.1996]).log()
    seen: list[set[int]] = [set(), set(), set(), set()]
    for seed in range(200):
        settings = SamplingSettings(top_p=0.75, top_p_decay=0.5, top_p_bound=0.3, seed=seed)
        sequence = TokenSequence([0], settings, 100)
        for place in range(4):
            seen[place].add(sequence.sample_next(logits))
    assert seen == [{0, 1, 2, 3}, {0, 1}, {0, 1}, {0, 1}]


def test_top_p_that_decays_to_nothing_takes_the_most_likely() -> None:
    sequence = TokenSequence([0], SamplingSettings(top_p_decay=1e-200, max_new_tokens=9), 100)
    for _ in range(9):
        sequence.sample_next(torch.tensor([0.1, 0.2, 0.15]))
    assert sequence.tokens[1:] == [1] * 8


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("settings", SETTINGS[:2])
def test_non_finite_logits_are_an_error(value: float, settings: SamplingSettings) -> None:
    with pytest.raises(RunError, match="not finite"):
        TokenSequence([0], settings, 100).sample_next(torch.tensor([0.0, value, 1.0]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 101}, "less than or equal to 100"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "greater than 0"),
        ({"top_p": 0.5, "top_p_bound": 0.6}, "is above top_p"),
        ({"max_new_tokens": 0}, "nothing to do"),
        ({"top_log_probs": 3}, "needs log_probs"),
        ({"stop": [""]}, "at least 1 character"),
        ({"stop_tokens": [-1]}, "greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SamplingSettings.model_validate(wrong)
