"""Learning rate over the steps."""

import math


def learning_rate(update: int, *, updates: int, warmup: int, peak: float, floor: float) -> float:
    """Linear warm-up to `peak`, then half a cosine down to `floor`.

    Args:
        update: 0 for the first update. A skipped step is no update.
        updates: how many there are; the last one has exactly `floor`.
        warmup: updates below the peak; the first has peak / (warmup + 1), never 0.
    """
    if update < warmup:
        return peak * (update + 1) / (warmup + 1)
    done = min(1.0, (update - warmup) / max(1, updates - 1 - warmup))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))
