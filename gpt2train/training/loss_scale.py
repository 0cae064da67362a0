"""Dynamic loss scale of fp16 training.

Gradients below 6e-8 are 0 in half precision. The loss is multiplied by a scale before the backward pass, and the
gradients are divided by it before the update. If they overflow, the step is skipped and the scale is lowered.
"""

from gpt2train.config import ScalerSettings
from gpt2train.settings import Record


class LossScale(Record):
    """State of the loss scale; stored in checkpoints."""

    value: float
    """Loss scale of the next step."""
    good: int = 0
    """Steps without overflow since the last overflow or change of the scale."""
    patience: int
    """Overflows left until the scale is halved (hysteresis); below 1 each one halves it."""


def first_scale(settings: ScalerSettings) -> LossScale:
    """Loss scale of a run's first step."""
    return LossScale(value=settings.initial, patience=settings.hysteresis)


def next_scale(scale: LossScale, overflow: bool, settings: ScalerSettings) -> LossScale:
    """Loss scale after one step.

    `window` consecutive steps without overflow double it. The first `hysteresis` - 1 overflows leave it unchanged, as
    in Megatron-LM, and each further one halves it. Only a doubling resets the count of overflows, not a good step.
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
    """Return True if the scale can be lowered further, which may fix an overflow; otherwise training has diverged."""
    return not settings.static and scale.value > settings.minimum
