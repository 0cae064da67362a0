"""Train state: spikes, skipped steps, the loss scale against torch's and Megatron-LM's, and learning rates."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers.optimization as peer
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import ScalerSettings, SpikeSettings, TrainSettings, preset
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.training.lr_schedule import Schedule, learning_rate, make_schedule
from gpt2train.training.train_state import (
    START,
    LossScale,
    SpikeWindow,
    StepStats,
    TrainState,
    can_fall,
    first_scale,
    next_scale,
    next_window,
)

SETTINGS = SpikeSettings(threshold_sigma=6.0, window=16)


def walk(values: list[float], settings: SpikeSettings = SETTINGS) -> list[int]:
    history, found = SpikeWindow(), []
    for place, value in enumerate(values):
        history, spike = next_window(SpikeWindow.model_validate_json(history.model_dump_json()), value, settings)
        found += [place] if spike else []
        assert len(history.values) <= settings.window
    return found


def noise(count: int, seed: int = 0) -> list[float]:
    return (1 + 0.1 * np.random.default_rng(seed).standard_normal(count)).tolist()


def test_a_spike_is_found_and_does_not_hide_the_next() -> None:
    values = noise(64)
    values[30] = values[32] = 40.0
    values[31] = math.nan
    assert walk(values) == [30, 32]
    # Nothing is one before the window is full, or when detection is off.
    values = [*noise(7), 40.0, *noise(20)]
    assert walk(values) == []
    assert walk([*noise(40), 40.0], SpikeSettings(threshold_sigma=0.0, window=16)) == []
    assert walk([*noise(40), -40.0]) == []  # below the mean is no spike
    # A lasting rise is soon no spike.
    spikes = walk([*noise(40), *(3.0 + v for v in noise(60, 1))])
    assert spikes[0] == 40 and 1 <= len(spikes) < 8 and spikes[-1] < 50


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_the_limit_is_the_mean_plus_a_multiple_of_the_deviation(values: list[float]) -> None:
    history = SpikeWindow(values=tuple(values[:-1][-16:]))
    _, spike = next_window(history, values[-1], SETTINGS)
    if len(history.values) < 8:
        assert not spike
    else:
        limit = np.mean(history.values) + 6 * np.std(history.values)
        assert spike == (values[-1] > limit) or values[-1] == pytest.approx(limit, rel=1e-9, abs=1e-9)


def settings(**changes: Any) -> TrainSettings:
    return build(TrainSettings, {"precision": "fp32"}, changes)


def test_a_skipped_step_is_no_update() -> None:
    made = settings()
    at = START
    for norm in (1.0, math.inf, math.nan, 1.0):
        at = at.advance(StepStats(2.0, norm, False), 8, made)
    assert (at.step, at.samples, at.updates, at.skipped, at.consecutive_skipped) == (4, 32, 2, 2, 0)
    assert at.advance(StepStats(2.0, math.nan, False), 8, made).consecutive_skipped == 1
    assert at.loss_scale(made, 4) == 1.0 and at.scale is None


def test_a_spike_of_the_watched_metric_is_skipped() -> None:
    for watch in ("grad_norm", "loss"):
        made = settings(spikes={"threshold_sigma": 6.0, "window": 16, "metric": watch})
        at = START
        for value in noise(16):
            at = at.advance(StepStats(value, value, False), 8, made)
        high, low = StepStats(9.0, 1.0, False), StepStats(1.0, 9.0, False)
        spike = high if watch == "loss" else low
        assert at.is_spike(spike, made)
        after = at.advance(spike, 8, made)
        assert (after.updates, after.skipped, after.consecutive_skipped) == (at.updates, 1, 1)
        assert not at.is_spike(low if watch == "loss" else high, made)


def test_overflows_that_a_lower_scale_may_cure_do_not_end_a_run() -> None:
    made = settings(precision="fp16", scaler={"initial": 16.0, "hysteresis": 2})
    at, rows, values = START, [], []
    for _ in range(8):
        values.append(at.loss_scale(made, 4) / 4)
        at = at.advance(StepStats(2.0, math.inf, False), 8, made)
        rows.append(at.consecutive_skipped)
    assert values == [16.0, 16.0, 8.0, 4.0, 2.0, 1.0, 1.0, 1.0]
    assert rows == [0, 0, 0, 0, 0, 1, 2, 3]


def test_old_and_new_train_states_are_read() -> None:
    old = TrainState.model_validate_json('{"step": 3, "samples": 24, "updates": 3, "skipped": 0}')
    assert old.history == SpikeWindow() and old.scale is None
    made = settings(precision="fp16", spikes={"threshold_sigma": 3.0})
    at = START.advance(StepStats(2.0, 1 / 3, False), 8, made)
    assert TrainState.model_validate_json(at.model_dump_json()) == at


overflows = st.lists(st.booleans(), max_size=60)


def scales(settings: ScalerSettings, happened: list[bool]) -> list[float]:
    scale, found = first_scale(settings), []
    for overflow in happened:
        found.append(scale.value)
        scale = next_scale(LossScale.model_validate_json(scale.model_dump_json()), overflow, settings)
    return [*found, scale.value]


@given(overflows, st.integers(1, 5))
def test_without_hysteresis_the_scale_equals_torchs(happened: list[bool], window: int) -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=window)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    expected = [theirs.get_scale()]
    for overflow in happened:
        theirs.scale(torch.ones(1))
        parameter.grad = torch.tensor([torch.inf if overflow else 1.0])
        theirs.step(optimizer)
        theirs.update()
        expected.append(theirs.get_scale())
    settings = ScalerSettings(initial=2.0**16, window=window, hysteresis=1, minimum=2.0**-120)
    assert scales(settings, happened) == expected


def megatron(settings: ScalerSettings, happened: list[bool]) -> list[float]:
    """Megatron-LM's dynamic scaler as its documentation describes it, with counters that count up."""
    scale, good, bad, found = settings.initial, 0, 0, []
    for overflow in happened:
        found.append(scale)
        good, bad = (0, bad + 1) if overflow else (good + 1, bad)
        if overflow and bad >= settings.hysteresis:
            scale = max(scale * 0.5, settings.minimum)
        if good == settings.window:
            scale, good, bad = scale * 2.0, 0, 0
    return [*found, scale]


@given(overflows, st.integers(1, 5), st.integers(1, 4), st.sampled_from([1.0, 2.0**14]))
def test_with_hysteresis_it_is_megatrons(happened: list[bool], window: int, hysteresis: int, minimum: float) -> None:
    settings = ScalerSettings(initial=2.0**16, window=window, hysteresis=hysteresis, minimum=minimum)
    assert scales(settings, happened) == megatron(settings, happened)


@given(overflows)
def test_a_static_scale_stays(happened: list[bool]) -> None:
    assert set(scales(ScalerSettings(initial=128.0, static=True), happened)) == {128.0}


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, True), ({"static": True}, False), ({"initial": 4.0, "minimum": 4.0}, False)]
)
def test_a_scale_can_fall_where_a_lower_one_may_help(settings: dict[str, float], expected: bool) -> None:
    made = ScalerSettings(**settings)
    assert can_fall(first_scale(made), made) is expected


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


def rate_settings(schedule: dict[str, Any], **more: Any) -> TrainSettings:
    return build(TrainSettings, {"steps": 100, "model": {"context": 10}, "schedule": schedule}, more)


def test_the_decay_may_be_longer_or_shorter_than_the_run() -> None:
    longer = make_schedule(rate_settings({"warmup": 0, "warmup_fraction": 0.1, "decay_steps": 400}), BatchPlan(4))
    assert (longer.updates, longer.warmup, longer.decay) == (400, 40, 80)
    assert learning_rate(99, longer) > 0.9 * longer.peak
    shorter = make_schedule(rate_settings({"warmup": 10, "decay_steps": 50}), BatchPlan(4))
    assert [learning_rate(update, shorter) for update in (49, 50, 99)] == [pytest.approx(6e-5)] * 3
    # The warm-up may be longer than the run, but not than the decay.
    assert make_schedule(rate_settings({"warmup": 150, "decay_steps": 400}), BatchPlan(4)).warmup == 150


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
        make_schedule(rate_settings({"warmup": 0} | schedule), BatchPlan(4))
