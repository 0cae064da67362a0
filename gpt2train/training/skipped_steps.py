"""Report of skipped steps, and the end of a run whose loss has diverged."""

import logging
import math
from pathlib import Path

from gpt2train.errors import RunError
from gpt2train.training.engine import Engine, PendingStats
from gpt2train.training.train_state import TrainState

log = logging.getLogger("gpt2train")


class SkippedSteps:
    """Skipped steps of a run, and the reason for the first of several in a row."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reason = ""

    def report(self, state: TrainState, pending: PendingStats) -> None:
        """Log a warning about the skipped step that led to `state`. Collective."""
        finite = math.isfinite(pending.read().grad_norm)
        why = "a spike" if finite else f"{self._engine.culprit(pending)} is not finite"
        if state.consecutive_skipped <= 1:
            self._reason = f"first in step {state.step}: {why}"
        log.warning("step %d skipped: %s", state.step, why)

    def check(self, state: TrainState, newest: Path | None) -> None:
        """Raise a RunError if `spikes.max_skipped_steps` steps in a row were skipped."""
        if state.consecutive_skipped >= self._engine.config.spikes.max_skipped_steps:
            raise RunError(
                f"loss diverged: {state.consecutive_skipped} steps in a row were skipped, up to step {state.step}; "
                f"{self._reason}; {divergence_remedy(newest)}"
            )


def divergence_remedy(newest: Path | None) -> str:
    """Advice for a run whose loss diverged, given its newest checkpoint."""
    advice = "lower optimizer.lr or raise schedule.warmup, and"
    if newest is None:
        return f"{advice} start again: no checkpoint was saved"
    return f"{advice} resume from the last checkpoint, {newest}"
