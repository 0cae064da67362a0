"""The loss scale against torch's GradScaler and against Megatron-LM's rule, on random overflows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import ScalerSettings
from gpt2train.training.loss_scale import LossScale, can_fall, first_scale, next_scale

overflows = st.lists(st.booleans(), max_size=60)


def scales(settings: ScalerSettings, happened: list[bool]) -> list[float]:
    scale, found = first_scale(settings), []
    for overflow in happened:
        found.append(scale.value)
        scale = next_scale(scale, overflow, settings)
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
def test_with_hysteresis_the_scale_equals_megatrons(
    happened: list[bool], window: int, hysteresis: int, minimum: float
) -> None:
    settings = ScalerSettings(initial=2.0**16, window=window, hysteresis=hysteresis, minimum=minimum)
    assert scales(settings, happened) == megatron(settings, happened)


@given(overflows)
def test_a_static_scale_stays(happened: list[bool]) -> None:
    assert set(scales(ScalerSettings(initial=128.0, static=True), happened)) == {128.0}


@given(overflows)
def test_the_scale_survives_serialisation(happened: list[bool]) -> None:
    settings = ScalerSettings(window=3)
    scale = first_scale(settings)
    for overflow in happened:
        scale = next_scale(LossScale.model_validate_json(scale.model_dump_json()), overflow, settings)
    assert scale.value == scales(settings, happened)[-1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, True), ({"static": True}, False), ({"initial": 4.0, "minimum": 4.0}, False)],
)
def test_a_scale_can_fall_where_a_lower_one_may_help(settings: dict[str, float], expected: bool) -> None:
    made = ScalerSettings(**settings)
    assert can_fall(first_scale(made), made) is expected
