"""Train state: the progress of a run with its loss scale and spike detection, and its transition from step to step."""

import contextlib
import json
import math
from operator import not_
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from gpt2train.config import RunConfig, ScalerSettings, SpikeSettings, TrainSettings
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.settings import Record
from gpt2train.store.run_folder import MANIFEST, list_checkpoints

# A loss above this many times that of a uniform guess, ln(vocabulary), is divergence; fresh weights begin at 1.0 times.
MAX_UNIFORM_LOSSES = 2


class LossScale(Record):
    """State of the dynamic loss scale of fp16 training; stored in checkpoints.

    Gradients below 6e-8 are 0 in half precision. The loss is multiplied by a scale before the backward pass, and the
    gradients are divided by it before the update. If they overflow, the step is skipped and the scale is lowered.
    """

    value: PositiveFloat
    """Loss scale of the next step."""
    good: NonNegativeInt = 0
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


class SpikeWindow(Record):
    """Gradient norms (or losses) of the last steps, newest last; stored in checkpoints."""

    values: tuple[float, ...] = ()
    """Values of at most `spikes.window` steps."""


def next_window(window: SpikeWindow, value: float, settings: SpikeSettings) -> tuple[SpikeWindow, bool]:
    """Decide if a value is a spike: more than `threshold_sigma` standard deviations above the mean of the window.

    No spike is reported until the window is half full. A spike enters the window clamped to the limit that it exceeded:
    it cannot mask the next one, and a level that has risen permanently is accepted within a few steps.

    Args:
        window: values of the previous steps.
        value: value of this step; one that is not finite is ignored, since such a step is skipped anyway.
        settings: window size and threshold; a `threshold_sigma` of 0 disables detection.

    Returns:
        The window for the next step, and True if the value is a spike. Equal on every process, as the values are.
    """
    if not settings.threshold_sigma or not math.isfinite(value):
        return window, False
    values, spike = window.values, False
    if len(values) >= settings.window // 2:
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
        limit = mean + settings.threshold_sigma * deviation
        value, spike = min(value, limit), value > limit
    return SpikeWindow(values=(*values, value)[-settings.window :]), spike


class StepStats(NamedTuple):
    """Statistics of one step, the same on every process."""

    loss: float
    """Mean loss over the targets of the step."""
    grad_norm: float
    """Gradient norm over all parameters, before clipping."""
    stop: bool
    """True if any process has a stop request."""
    z_loss: float = 0.0
    """Mean of the second term of the loss, `objective.z_loss` times (log Z)^2; the loss does not contain it."""


class TrainState(Record):
    """Progress of a run; together with weights and optimizer state, the complete state of training.

    Its methods are pure functions, the same on every process.
    """

    step: NonNegativeInt
    """Steps done. Dropout of a step is seeded by (seed, step, rank), so no generator state needs saving."""
    samples: NonNegativeInt
    """Samples used, which is the global index of the next sample."""
    updates: NonNegativeInt
    """Steps that changed the weights; they determine the learning rate."""
    skipped: NonNegativeInt
    """Steps skipped because the gradient was not finite or a spike was detected."""
    consecutive_skipped: NonNegativeInt = 0
    """Skipped steps since the last update."""
    scale: LossScale | None = None
    """Loss scale, in fp16 only."""
    history: SpikeWindow = SpikeWindow()
    """Metric values of the last steps, for spike detection."""
    batches: tuple[tuple[PositiveInt, PositiveInt], ...] = Field((), exclude_if=not_)
    """Batch sizes so far, as pairs (steps, samples per step), oldest first; empty if there was one size only."""

    @model_validator(mode="after")
    def agree(self) -> Self:
        """Refuse counts that contradict one another: a flipped digit of a checkpoint whose manifest has no hash."""
        sums = sum(steps for steps, _ in self.batches), sum(steps * size for steps, size in self.batches)
        if self.step != self.updates + self.skipped or self.consecutive_skipped > self.skipped:
            raise ValueError("the updates and the skipped steps are not the steps")
        if self.samples < self.step or (self.batches and sums != (self.step, self.samples)):
            raise ValueError("the samples are not those of the steps")
        return self

    @property
    def done(self) -> tuple[tuple[int, int], ...]:
        """Batch sizes so far, also of a run that had one only.

        An earlier version kept none: such a run is taken as one of equal batches, the larger ones last.
        """
        if self.batches or not self.step:
            return self.batches
        size, larger = divmod(self.samples, self.step)
        return tuple((steps, size) for steps, size in ((self.step - larger, size), (larger, size + 1)) if steps)

    def loss_scale(self, settings: TrainSettings, micro_batches: int) -> float:
        """Loss scale of the next step, 1 unless in fp16. The loss is also divided by the number of its tokens.

        In fp16 the scale applies to the mean over one micro-batch, as in Megatron-LM. If it applied to the mean over
        the whole batch, half-precision gradients would be smaller by the number of micro-batches, and mostly 0 with
        hundreds. Micro-batches are those of the step over all processes.
        """
        scale = self._scale(settings)
        return scale.value * micro_batches if scale else 1.0

    def is_spike(self, stats: StepStats, settings: TrainSettings) -> bool:
        """Return True if the next step, with these statistics, is a loss spike and must be skipped."""
        return self._next_history(stats, settings)[1]

    def lower_scale_may_help(self, settings: TrainSettings) -> bool:
        """Return True if gradients that overflowed in the next step may be finite at a lower loss scale (fp16)."""
        scale = self._scale(settings)
        return scale is not None and can_fall(scale, settings.scaler)

    def advance(self, stats: StepStats, size: int, settings: TrainSettings) -> "TrainState":
        """Train state after one more step of `size` samples.

        A step is skipped if its gradient norm is not finite or it is a spike. In fp16 an overflow that a lower loss
        scale may fix does not count towards the limit of consecutive skipped steps.
        """
        history, spike = self._next_history(stats, settings)
        finite, scale = math.isfinite(stats.grad_norm), self._scale(settings)
        updated = finite and not spike
        fixable = not finite and self.lower_scale_may_help(settings)
        return TrainState(
            step=self.step + 1,
            samples=self.samples + size,
            updates=self.updates + updated,
            skipped=self.skipped + (not updated),
            consecutive_skipped=0 if updated or fixable else self.consecutive_skipped + 1,
            scale=scale and next_scale(scale, not finite, settings.scaler),
            history=history,
            batches=self._batches_after(size),
        )

    def _batches_after(self, size: int) -> tuple[tuple[int, int], ...]:
        """`batches` after one more step of this many samples."""
        *before, (steps, last) = self.done or ((0, size),)
        sizes = (*before, (steps + 1, last)) if last == size else (*before, (steps, last), (1, size))
        return sizes if len(sizes) > 1 else ()

    def _next_history(self, stats: StepStats, settings: TrainSettings) -> tuple[SpikeWindow, bool]:
        value = stats.loss if settings.spikes.metric == "loss" else stats.grad_norm
        return next_window(self.history, value, settings.spikes)

    def _scale(self, settings: TrainSettings) -> LossScale | None:
        """Loss scale of a run in fp16, including one that started in another precision; None in other precisions."""
        if settings.precision != "fp16":
            return None
        return self.scale or first_scale(settings.scaler)


START = TrainState(step=0, samples=0, updates=0, skipped=0)


def newest_state(run: str | Path) -> TrainState:
    """Train state of the newest checkpoint of a run folder, without verifying its files; `START` without one."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        manifest = json.loads((list_checkpoints(run)[-1] / MANIFEST).read_bytes())
        return TrainState.model_validate(manifest["position"])
    return START


def is_plausible(loss: float, config: RunConfig) -> bool:
    """Return True if a loss is finite and at most twice that of a uniform guess, as that of weights worth saving.

    The scale of an objective's own loss is not known; it only has to be finite.
    """
    if OBJECTIVES[config.objective.name].loss is not None:
        return math.isfinite(loss)
    return loss <= MAX_UNIFORM_LOSSES * math.log(config.shape.padded_vocab)


def is_sound(stats: StepStats, config: RunConfig) -> bool:
    """Return True if the weights that gave these statistics can be saved."""
    return math.isfinite(stats.grad_norm) and is_plausible(stats.loss, config)
