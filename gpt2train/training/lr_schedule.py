"""Learning rate schedules.

The learning rate is a pure function of the number of updates. A skipped step is not an update and does not advance the
schedule: the next step gets the learning rate that the skipped one would have had.
"""

import math
from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """Resolved schedule, with the warm-up as a number of updates."""

    updates: int
    """Number of updates until the decay ends; the last one, and all later ones, have the learning rate `floor` (`peak`
    for a constant schedule)."""
    warmup: int  # number of warm-up updates, below the peak
    peak: float  # highest learning rate
    floor: float = 0.0  # lowest learning rate after the warm-up
    kind: str = "cosine"  # shape after the warm-up
    decay: int = 1  # wsd: number of updates in which the learning rate decays, at least 1
    fall: str = "linear"  # wsd: shape of the decay


def learning_rate(update: int, schedule: Schedule) -> float:
    """Learning rate of one update.

    Linear warm-up, whose first value is peak / (warmup + 1) and never 0, then one of

    * cosine: half a cosine down to the floor (Loshchilov and Hutter 2017, SGDR),
    * linear: a straight line down to the floor,
    * inverse_sqrt: peak * sqrt((warmup + 1) / (update + 1)), never below the floor (Vaswani et al. 2017),
    * constant,
    * wsd: constant, then down to the floor over the last `decay` updates, linearly or as 1 - sqrt of the progress
      (Hu et al. 2024, MiniCPM; Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
      Durations", who found 1 - sqrt to be better).
    """
    if update < schedule.warmup:
        return schedule.peak * (update + 1) / (schedule.warmup + 1)
    last = schedule.updates - 1
    match schedule.kind:
        case "constant":
            return schedule.peak
        case "inverse_sqrt":
            return max(schedule.floor, schedule.peak * math.sqrt((schedule.warmup + 1) / (update + 1)))
        case "wsd":
            left = 1 - _progress(update, max(schedule.warmup, last - schedule.decay), last)
            left = 1 - math.sqrt(1 - left) if schedule.fall == "sqrt" else left
        case "linear":
            left = 1 - _progress(update, schedule.warmup, last)
        case _:
            left = 0.5 * (1 + math.cos(math.pi * _progress(update, schedule.warmup, last)))
    return schedule.floor + (schedule.peak - schedule.floor) * left


def _progress(update: int, first: int, last: int) -> float:
    """Progress between two updates, 0 to 1."""
    return min(1.0, max(0, update - first) / max(1, last - first))


def make_schedule(config: TrainSettings, batches: BatchPlan, per_epoch: int = 0) -> Schedule:
    """Resolve the schedule of a run.

    A warm-up in tokens or epochs ends with the update at which these have been used, given the batch sizes of the run
    and no skipped steps.

    Args:
        config: settings of the run; `steps`, or `schedule.decay_steps` if that is given, is the number of updates if
            none is skipped.
        batches: batch sizes over the run.
        per_epoch: samples of an epoch of the training tokens.

    Raises:
        UserError: the warm-up takes all of these steps.
    """
    settings, context = config.schedule, config.model.context
    steps = settings.decay_steps or config.steps
    if settings.warmup_tokens:
        name, given = "schedule.warmup_tokens", f"{settings.warmup_tokens:,} = "
        warmup = batches.steps_until(-(-settings.warmup_tokens // context))
    elif settings.warmup_epochs:
        name, given = "schedule.warmup_epochs", f"{settings.warmup_epochs:g} = "
        warmup = batches.steps_until(math.ceil(settings.warmup_epochs * per_epoch))
    elif settings.warmup_fraction:
        name, given = "schedule.warmup_fraction", f"{settings.warmup_fraction:g} = "
        warmup = round(settings.warmup_fraction * steps)
    else:
        name, given = "schedule.warmup", ""
        warmup = settings.warmup
    if warmup >= steps:
        limit, longer = ("schedule.decay_steps", "raise that") if settings.decay_steps else ("steps", "train longer")
        raise UserError(f"{name} {given}{warmup} steps must be below {limit} {steps}; lower it or {longer}")
    return Schedule(
        updates=steps,
        warmup=warmup,
        peak=config.optimizer.lr,
        floor=settings.min_lr,
        kind=settings.kind,
        decay=max(1, round(settings.decay_fraction * steps)),
        fall=settings.decay_shape,
    )
