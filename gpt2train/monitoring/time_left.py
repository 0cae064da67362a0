"""Time left of a training, from the rows of metrics.jsonl; does not import torch."""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

RECENT_STEPS = 50  # steps of the median; a stalled disk or a busy machine makes single steps slow
# Columns with seconds that are not in `seconds`: validations, and saves as far as training pauses for them.
PAUSES = ("validation_seconds", "save_stall_seconds")


class TimeLeft:
    """Estimate of the time until the last step.

    A step counts with the median of the last steps, and with its share of the pauses. The share of validations is
    counted up to the last validation, and that of saves up to the last save: with one validation in 250 steps it is the
    same after 251 steps and after 499. Rows of earlier starts count too, so that a resumed run has an estimate at once.

    Args:
        rows: rows of metrics.jsonl so far.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._rows = self._step = 0
        self._paused = dict.fromkeys(PAUSES, 0.0)  # seconds so far
        self._rows_paused = dict.fromkeys(PAUSES, 0)  # rows up to the last pause
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the row of the next step; values that are missing or not finite are left out."""
        self._rows, self._step = self._rows + 1, row["step"]
        if _is_time(seconds := row.get("seconds")):
            self._recent.append(seconds)
        for name in PAUSES:
            if _is_time(seconds := row.get(name)):
                self._paused[name] += seconds
                self._rows_paused[name] = self._rows

    def seconds(self, steps: int) -> float | None:
        """Seconds until the end of step `steps`; None before the first step."""
        if not self._recent:
            return None
        pauses = sum(self._paused[name] / max(1, self._rows_paused[name]) for name in PAUSES)
        return (statistics.median(self._recent) + pauses) * max(0, steps - self._step)


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
