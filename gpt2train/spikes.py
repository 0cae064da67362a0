"""Steps whose gradient is far from those before: they can be left out before they harm the weights."""

import math

from gpt2train.config import SkipSettings
from gpt2train.settings import Settings


class History(Settings):
    """Gradient norms (or losses) of the last steps, the newest last; part of a checkpoint."""

    values: tuple[float, ...] = ()
    """At most as many as the window has."""


def judge(history: History, value: float, settings: SkipSettings) -> tuple[History, bool]:
    """Whether a value is a spike: more than `sigma` standard deviations above the mean of the window.

    Nothing is judged before half the window is filled. A spike enters the window as the limit that it went over, not as
    itself: it cannot hide the next one, and a level that has risen for good is learned within a few steps.

    Args:
        history: of the steps before.
        value: of this step; what is not finite is skipped for that and teaches nothing.
        settings: window and limit; a `sigma` of 0 judges nothing.

    Returns:
        The history for the next step, and the decision. The same on every process, since all have the same values.
    """
    if not settings.sigma or not math.isfinite(value):
        return history, False
    values, spike = history.values, False
    if len(values) >= settings.window // 2:
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
        limit = mean + settings.sigma * deviation
        value, spike = min(value, limit), value > limit
    return History(values=(*values, value)[-settings.window :]), spike
