"""Learning rate over the updates.

A pure function of the number of the update. A skipped step is no update, so that it does not advance the schedule: the
rate that it would have had is the next step's.
"""

import math
from dataclasses import dataclass

from gpt2train.batch import BatchPlan
from gpt2train.config import TrainSettings
from gpt2train.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """A schedule whose warm-up is a number of updates, whatever unit it was given in.

    Attributes:
        updates: how many there are; the last one has `floor` (with a constant rate: `peak`).
        warmup: updates below the peak.
        peak: highest learning rate.
        floor: lowest learning rate after the warm-up.
        kind: shape after the warm-up.
        decay: wsd: updates in which the rate falls, at least 1.
        fall: wsd: how it falls.
    """

    updates: int
    warmup: int
    peak: float
    floor: float = 0.0
    kind: str = "cosine"
    decay: int = 1
    fall: str = "linear"


def learning_rate(update: int, schedule: Schedule) -> float:
    """The learning rate of one update.

    Linear warm-up, whose first rate is peak / (warmup + 1) and never 0, then one of

    * cosine: half a cosine down to the floor (Loshchilov and Hutter 2017, SGDR),
    * linear: a straight line down to the floor,
    * inverse_sqrt: peak * sqrt((warmup + 1) / (update + 1)), never below the floor (Vaswani et al. 2017),
    * constant,
    * wsd: constant, then down to the floor over the last `decay` updates, in a line or as 1 - sqrt of the share done
      (Hu et al. 2024, MiniCPM; Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
      Durations", who found 1 - sqrt the better one).

    Args:
        update: 0 for the first one.
        schedule: its shape.
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
            left = 1 - _share(update, max(schedule.warmup, last - schedule.decay), last)
            left = 1 - math.sqrt(1 - left) if schedule.fall == "sqrt" else left
        case "linear":
            left = 1 - _share(update, schedule.warmup, last)
        case _:
            left = 0.5 * (1 + math.cos(math.pi * _share(update, schedule.warmup, last)))
    return schedule.floor + (schedule.peak - schedule.floor) * left


def _share(update: int, first: int, last: int) -> float:
    """How much of the way from one update to another is done, 0 to 1."""
    return min(1.0, max(0, update - first) / max(1, last - first))


def make_schedule(config: TrainSettings, batches: BatchPlan) -> Schedule:
    """The schedule of a run.

    A warm-up in tokens ends with the update that brings the samples used to as many tokens, with the batch sizes of the
    ramp-up and no step skipped.

    Args:
        config: what was chosen; `steps` is the number of updates when none is skipped.
        batches: sizes of the batches over the run.

    Raises:
        UserError: the warm-up takes all steps.
    """
    settings, steps, context = config.schedule, config.steps, config.model.context
    if settings.warmup_tokens:
        name, given = "schedule.warmup_tokens", f"{settings.warmup_tokens:,} = "
        warmup = batches.steps_until(-(-settings.warmup_tokens // context))
    elif settings.warmup_fraction:
        name, given = "schedule.warmup_fraction", f"{settings.warmup_fraction:g} = "
        warmup = round(settings.warmup_fraction * steps)
    else:
        name, given = "schedule.warmup", ""
        warmup = settings.warmup
    if warmup >= steps:
        raise UserError(f"{name} {given}{warmup} steps must be below steps {steps}; lower it or train longer")
    return Schedule(
        updates=steps,
        warmup=warmup,
        peak=config.optimizer.lr,
        floor=settings.min_lr,
        kind=settings.kind,
        decay=max(1, round(settings.decay * steps)),
        fall=settings.fall,
    )
