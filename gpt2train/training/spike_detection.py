"""Detection of loss spikes, so that such a step can be skipped before it damages the weights."""

import math

from gpt2train.config import SpikeSettings
from gpt2train.settings import Record


class SpikeWindow(Record):
    """Gradient norms (or losses) of the last steps, newest last; stored in checkpoints."""

    values: tuple[float, ...] = ()
    """Values of at most `spikes.window` steps."""


def update(window: SpikeWindow, value: float, settings: SpikeSettings) -> tuple[SpikeWindow, bool]:
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
