"""Batch arithmetic and ramp-up."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpt2train.config import BatchSettings, RampUp
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.errors import UserError

few = st.integers(1, 40)


@given(few, few, few)
def test_any_two_sizes_give_the_third(micro: int, processes: int, turns: int) -> None:
    whole = micro * processes * turns
    for hidden in ("micro_batch", "global_batch", "gradient_accumulation_steps", None):
        given_ = {"micro_batch": micro, "global_batch": whole, "gradient_accumulation_steps": turns}
        if hidden:
            given_[hidden] = 0
        assert BatchSettings(**given_).sizes(processes) == (micro, whole, turns)


@given(few, few, few, few)
def test_three_contradicting_sizes_are_refused(micro: int, processes: int, turns: int, whole: int) -> None:
    assume(whole != micro * processes * turns)
    with pytest.raises(UserError, match=f"batch.global_batch {whole} is not"):
        BatchSettings(micro_batch=micro, global_batch=whole, gradient_accumulation_steps=turns).sizes(processes)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((4, 16, 0), "not a multiple of micro_batch 4 x 3 .* = 12; set it to 12 or 24, or"),
        ((4, 8, 0), "set it to 12, or change micro_batch"),
        ((0, 16, 4), "gradient_accumulation_steps 4 x 3 .* = 12; set it to 12 or 24"),
        ((2, 12, 3), "gradient_accumulation_steps 3 = 18; set one of the three to 0"),
        ((2, 0, 0), "at least two of"),
    ],
)
def test_a_refusal_shows_the_calculation_and_the_nearest_size(batch: tuple[int, int, int], message: str) -> None:
    micro, whole, turns = batch
    with pytest.raises(UserError, match=message):
        BatchSettings(micro_batch=micro, global_batch=whole, gradient_accumulation_steps=turns).sizes(3)


@pytest.mark.parametrize(
    ("ramp", "message"),
    [
        ((4, 13, 100), "start 4 is not a multiple of micro_batch x data-parallel processes = 6; set it to 6"),
        ((12, 8, 100), "from 12 by 8 does not reach global_batch 30: 30 - 12 = 18 is not a multiple of 8"),
        ((12, 9, 100), "increment 9 is not a multiple of .* = 6; set it to 6 or 12"),
        ((36, 6, 100), "from 36 by 6 does not reach global_batch 30"),
    ],
)
def test_a_ramp_up_that_does_not_fit_is_refused(ramp: tuple[int, int, int], message: str) -> None:
    start, increment, samples = ramp
    ramp_up = RampUp(start=start, increment=increment, samples=samples)
    with pytest.raises(UserError, match=message):
        BatchSettings(micro_batch=2, global_batch=30, ramp_up=ramp_up).sizes(3)


def megatron(plan: BatchPlan, samples: int) -> int:
    """Megatron-LM's rule of `--rampup-batch-size START INCREMENT SAMPLES`: equal samples for each increment."""
    assert plan.ramp is not None
    increments = (plan.size - plan.ramp.start) // plan.ramp.increment
    if samples > plan.ramp.samples or not increments:
        return plan.size
    return min(plan.size, plan.ramp.start + int(samples / (plan.ramp.samples / increments)) * plan.ramp.increment)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 12), st.integers(1, 5000), st.integers(0, 6000))
def test_the_size_equals_megatrons(start: int, increment: int, parts: int, length: int, samples: int) -> None:
    plan = BatchPlan(start + parts * increment, RampUp(start=start, increment=increment, samples=length))
    # At the very end of a part its division in floating point can fall short by one; ours is of integers.
    assume(parts == 0 or samples * parts % length)
    assert plan.size_at(samples) == megatron(plan, samples)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 12), st.integers(1, 3000))
def test_steps_and_samples_agree_with_counting_one_by_one(start: int, increment: int, parts: int, length: int) -> None:
    plan = BatchPlan(start + parts * increment, RampUp(start=start, increment=increment, samples=length))
    samples, step, sizes = 0, 0, []
    while samples < length + 3 * plan.size:
        assert plan.steps_until(samples) == step
        size = plan.size_at(samples)
        assert plan.steps_until(samples + 1) == plan.steps_until(samples + size) == step + 1
        sizes.append(size)
        samples, step = samples + size, step + 1
    assert sizes == sorted(sizes) and sizes[-1] == plan.size
    assert plan.sizes() == sorted(set(sizes))


def test_the_size_is_constant_without_a_ramp_up() -> None:
    plan = BatchPlan(8)
    assert (plan.size_at(0), plan.steps_until(33), plan.sizes()) == (8, 5, [8])
