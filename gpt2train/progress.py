"""What each step changes about where a run stands: pure functions, the same on every process."""

import math

from gpt2train.checkpoint.store import Position
from gpt2train.config import TrainSettings
from gpt2train.scaler import LossScale, can_fall, first_scale, next_scale
from gpt2train.spikes import judge


def loss_scale(position: Position, settings: TrainSettings, micro_batches: int) -> float:
    """What the loss of the next step is multiplied by, beside the division by all its tokens.

    In fp16 the scale is that of the mean over one micro-batch, as in Megatron-LM. Were it that of the whole batch, the
    gradients in half precision would be smaller by the number of micro-batches, and with hundreds of them mostly 0.

    Args:
        position: before the step.
        settings: of the run.
        micro_batches: of the step, over all processes.
    """
    scale = _scale(position, settings)
    return scale.value * micro_batches if scale else 1.0


def is_spike(position: Position, loss: float, grad_norm: float, settings: TrainSettings) -> bool:
    """Whether the step that follows `position` is to be skipped as a spike."""
    return judge(position.history, loss if settings.skip.watch == "loss" else grad_norm, settings.skip)[1]


def advance(position: Position, loss: float, grad_norm: float, size: int, settings: TrainSettings) -> Position:
    """Where a run stands after one more step of `size` samples.

    A step is skipped when its gradient norm is not finite or it is a spike. In fp16 an overflow that a lower loss scale
    may mend does not count towards the limit of skipped steps in a row.
    """
    finite, spike = math.isfinite(grad_norm), is_spike(position, loss, grad_norm, settings)
    history, _ = judge(position.history, loss if settings.skip.watch == "loss" else grad_norm, settings.skip)
    updated, scale = finite and not spike, _scale(position, settings)
    mendable = not finite and scale is not None and can_fall(scale, settings.scaler)
    return Position(
        step=position.step + 1,
        samples=position.samples + size,
        updates=position.updates + updated,
        skipped=position.skipped + (not updated),
        in_a_row=0 if updated or mendable else position.in_a_row + 1,
        scale=scale and next_scale(scale, not finite, settings.scaler),
        history=history,
    )


def _scale(position: Position, settings: TrainSettings) -> LossScale | None:
    """A run in fp16 has a scale, also one that began in another precision."""
    if settings.precision != "fp16":
        return None
    return position.scale or first_scale(settings.scaler)
