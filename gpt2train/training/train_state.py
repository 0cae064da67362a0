"""Transitions of the train state from step to step: pure functions, the same on every process."""

import math

from gpt2train.checkpoint.store import TrainState
from gpt2train.config import TrainSettings
from gpt2train.model.shape import Shape
from gpt2train.training.loss_scale import LossScale, can_fall, first_scale, next_scale
from gpt2train.training.spike_detection import update

# A loss above this many times that of a uniform guess, ln(vocabulary), is divergence; fresh weights begin at 1.0 times.
MAX_UNIFORM_LOSSES = 2


def loss_scale(state: TrainState, settings: TrainSettings, micro_batches: int) -> float:
    """Loss scale of the next step, 1 unless in fp16. The loss is also divided by the number of its tokens.

    In fp16 the scale applies to the mean over one micro-batch, as in Megatron-LM. If it applied to the mean over the
    whole batch, half-precision gradients would be smaller by the number of micro-batches, and mostly 0 with hundreds.

    Args:
        state: train state before the step.
        settings: settings of the run.
        micro_batches: number of micro-batches of the step, over all processes.
    """
    scale = _scale(state, settings)
    return scale.value * micro_batches if scale else 1.0


def is_spike(state: TrainState, loss: float, grad_norm: float, settings: TrainSettings) -> bool:
    """Return True if the step after `state` is a loss spike and must be skipped."""
    return update(state.history, loss if settings.spikes.metric == "loss" else grad_norm, settings.spikes)[1]


def is_plausible(loss: float, shape: Shape) -> bool:
    """Return True if the loss is finite and at most twice that of a uniform guess, so that the weights can be saved."""
    return loss <= MAX_UNIFORM_LOSSES * math.log(shape.padded_vocab)


def lower_scale_may_help(state: TrainState, settings: TrainSettings) -> bool:
    """Return True if gradients that overflowed in the step after `state` may be finite at a lower loss scale (fp16)."""
    scale = _scale(state, settings)
    return scale is not None and can_fall(scale, settings.scaler)


def advance(state: TrainState, loss: float, grad_norm: float, size: int, settings: TrainSettings) -> TrainState:
    """Train state after one more step of `size` samples.

    A step is skipped if its gradient norm is not finite or it is a spike. In fp16 an overflow that a lower loss scale
    may fix does not count towards the limit of consecutive skipped steps.
    """
    finite, spike = math.isfinite(grad_norm), is_spike(state, loss, grad_norm, settings)
    history, _ = update(state.history, loss if settings.spikes.metric == "loss" else grad_norm, settings.spikes)
    updated, scale = finite and not spike, _scale(state, settings)
    fixable = not finite and lower_scale_may_help(state, settings)
    return TrainState(
        step=state.step + 1,
        samples=state.samples + size,
        updates=state.updates + updated,
        skipped=state.skipped + (not updated),
        consecutive_skipped=0 if updated or fixable else state.consecutive_skipped + 1,
        scale=scale and next_scale(scale, not finite, settings.scaler),
        history=history,
    )


def _scale(state: TrainState, settings: TrainSettings) -> LossScale | None:
    """Loss scale of a run in fp16, including one that started in another precision; None in other precisions."""
    if settings.precision != "fp16":
        return None
    return state.scale or first_scale(settings.scaler)
