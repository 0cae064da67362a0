"""The loss scale of fp16 training.

Gradients below 6e-8 are 0 in half precision. The loss is multiplied by a scale before the backward pass and the
gradients are divided by it before the update; when they overflow, the step is skipped and the scale falls.
"""

from gpt2train.config import ScalerSettings
from gpt2train.settings import Settings


class LossScale(Settings):
    """Where the scale stands; part of a checkpoint."""

    value: float
    """What the loss of the next step is multiplied by."""
    good: int = 0
    """Steps without an overflow since the scale last changed or a gradient overflowed."""
    patience: int
    """Overflows left until the scale falls; below 1 each one lowers it."""


def first_scale(settings: ScalerSettings) -> LossScale:
    """The scale of a run's first step."""
    return LossScale(value=settings.initial, patience=settings.hysteresis)


def next_scale(scale: LossScale, overflow: bool, settings: ScalerSettings) -> LossScale:
    """The scale after one step.

    `window` good steps in a row double it. Overflows use up the patience (Megatron-LM's hysteresis), which comes back
    when the scale grows, not with a good step; when it is used up, each overflow halves the scale.

    Args:
        scale: of the step.
        overflow: whether the gradient was not finite, on any process.
        settings: bounds and window.
    """
    if settings.static:
        return scale
    if overflow:
        patience = scale.patience - 1
        value = scale.value if patience > 0 else max(settings.minimum, scale.value / 2)
        return LossScale(value=value, good=0, patience=patience)
    if scale.good + 1 < settings.window:
        return scale.model_copy(update={"good": scale.good + 1})
    return LossScale(value=scale.value * 2, good=0, patience=settings.hysteresis)


def can_fall(scale: LossScale, settings: ScalerSettings) -> bool:
    """Whether a lower scale may mend an overflow; when it cannot, the numbers themselves are lost."""
    return not settings.static and scale.value > settings.minimum
