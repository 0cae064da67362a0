"""Learning rates: ends, bounds, continuity, and the same numbers as the schedules of transformers."""

import itertools
import math
from typing import Any

import pytest
import torch
import transformers.optimization as peer
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import TrainSettings, preset
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.training.lr_schedule import Schedule, learning_rate, make_schedule

KINDS = ["cosine", "linear", "constant", "inverse_sqrt", "wsd"]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    updates = draw(st.integers(2, 400))
    return Schedule(
        updates=updates,
        warmup=draw(st.integers(0, updates - 1)),
        peak=1.0,
        floor=draw(st.sampled_from([0.0, 0.1, 1.0])),
        kind=draw(st.sampled_from(KINDS)),
        decay=draw(st.integers(1, updates)),
        fall=draw(st.sampled_from(["linear", "sqrt"])),
    )


@given(schedules())
def test_the_rate_rises_to_the_peak_falls_to_the_minimum_and_stays_there(schedule: Schedule) -> None:
    rates = [learning_rate(update, schedule) for update in range(schedule.updates)]
    warmup, last = schedule.warmup, schedule.updates - 1
    assert all(a < b for a, b in itertools.pairwise(rates[: warmup + 1])) and rates[0] > 0
    assert rates[warmup] == max(rates) == 1.0
    assert all(a >= b for a, b in itertools.pairwise(rates[warmup:]))
    assert min(rates[warmup:]) >= schedule.floor
    falling = max(1, last - warmup)
    if schedule.kind == "wsd":
        falling = min(falling, schedule.decay)
    steepest = {"cosine": math.pi / 2 / falling, "linear": 1 / falling, "constant": 0.0, "inverse_sqrt": 1.0}
    steepest["wsd"] = 1 / falling if schedule.fall == "linear" else 1 / math.sqrt(falling)
    bound = max(1 / (warmup + 1), steepest[schedule.kind]) + 1e-12
    assert all(abs(a - b) <= bound for a, b in itertools.pairwise(rates))
    if schedule.kind != "inverse_sqrt" and warmup < last:  # otherwise the peak is the last update's
        end = 1.0 if schedule.kind == "constant" else schedule.floor
        assert [learning_rate(last + more, schedule) for more in (0, 1, 1000)] == [pytest.approx(end)] * 3


def theirs(name: str, updates: int, warmup: int, **more: Any) -> list[float]:
    """Rates of transformers. Its step 0 has the rate 0, and its last one comes after the last update: our update u is
    its step u + 1, with a warm-up longer by one."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = getattr(peer, f"get_{name}")(optimizer, num_warmup_steps=warmup + 1, **more)
    (rate,) = scheduler.lr_lambdas
    return [rate(update + 1) for update in range(updates)]


@given(st.integers(3, 200), st.data())
def test_rates_equal_those_of_transformers(updates: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, updates - 2))
    decay = data.draw(st.integers(1, updates - 1 - warmup))
    whole = {"num_training_steps": updates}
    parts = {"num_stable_steps": updates - 1 - warmup - decay, "num_decay_steps": decay, "min_lr_ratio": 0.0}
    twins: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
        ("cosine", ""): ("cosine_with_min_lr_schedule_with_warmup", whole | {"min_lr": 0.1}),
        ("linear", ""): ("linear_schedule_with_warmup", whole),
        ("inverse_sqrt", ""): ("inverse_sqrt_schedule", {}),
        ("constant", ""): ("constant_schedule_with_warmup", {}),
        ("wsd", "linear"): ("wsd_schedule", parts | {"decay_type": "linear"}),
        ("wsd", "sqrt"): ("wsd_schedule", parts | {"decay_type": "1-sqrt"}),
    }
    for (kind, fall), (name, more) in twins.items():
        floor = 0.1 if kind == "cosine" else 0.0
        schedule = Schedule(updates, warmup, peak=1.0, floor=floor, kind=kind, decay=decay, fall=fall)
        ours = [learning_rate(update, schedule) for update in range(updates)]
        assert ours == pytest.approx(theirs(name, updates, warmup, **more), abs=1e-12), kind


def settings(schedule: dict[str, Any], **more: Any) -> TrainSettings:
    return build(TrainSettings, {"steps": 100, "model": {"context": 10}, "schedule": schedule}, more)


def test_the_decay_may_be_longer_or_shorter_than_the_run() -> None:
    longer = make_schedule(settings({"warmup": 0, "warmup_fraction": 0.1, "decay_steps": 400}), BatchPlan(4))
    assert (longer.updates, longer.warmup, longer.decay) == (400, 40, 80)
    assert learning_rate(99, longer) > 0.9 * longer.peak
    shorter = make_schedule(settings({"warmup": 10, "decay_steps": 50}), BatchPlan(4))
    assert [learning_rate(update, shorter) for update in (49, 50, 99)] == [pytest.approx(6e-5)] * 3
    # The warm-up may be longer than the run, but not than the decay.
    assert make_schedule(settings({"warmup": 150, "decay_steps": 400}), BatchPlan(4)).warmup == 150


def test_the_rate_of_megatron_s_345m_at_iteration_2000() -> None:
    """A run of 2,000 iterations logs 9.3e-5 there: 1.5e-4 x 1,985 / 3,200, since 15 iterations at loss scales from 2^32
    overflowed and are no updates. Iteration n of Megatron-LM logs the rate of the next one."""
    config = build(TrainSettings, preset("megatron-345m"), {"steps": 2000})
    schedule = make_schedule(config, BatchPlan(8))
    assert (schedule.updates, schedule.warmup) == (320_000, 3_200)
    assert learning_rate(2000 - 15, schedule) == pytest.approx(9.3e-5, rel=1e-3)
    assert learning_rate(3_200, schedule) == 1.5e-4
    assert learning_rate(161_600, schedule) == pytest.approx((1.5e-4 + 1e-5) / 2, rel=1e-4)  # half of the cosine
    assert learning_rate(319_999, schedule) == learning_rate(499_999, schedule) == 1e-5


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"warmup_tokens": 4000, "decay_steps": 90}, "warmup_tokens 4,000 = 100 steps must be below .*decay_steps 90"),
        ({"warmup": 5, "warmup_tokens": 10}, "given more than once, as warmup 5 and warmup_tokens 10; set all but"),
        ({"warmup": 100, "warmup_fraction": 0.1}, "as warmup 100 and warmup_fraction 0.1"),
        ({"warmup_tokens": 4000}, r"warmup_tokens 4,000 = 100 steps must be below steps 100"),
        ({"warmup_fraction": 0.999}, r"warmup_fraction 0.999 = 100 steps must be below steps 100"),
    ],
)
def test_a_warmup_that_does_not_fit_is_refused(schedule: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_schedule(settings({"warmup": 0} | schedule), BatchPlan(4))
