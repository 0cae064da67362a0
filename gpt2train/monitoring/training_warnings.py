"""Warnings about training settings and progress: too many epochs, a long warm-up, overfitting."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt2train.config import RunConfig

MAX_EPOCHS = (
    4  # beyond this, repeated data helps less and less (Muennighoff et al. 2023, "Scaling Data-Constrained LMs")
)
RISES = 2  # consecutive increases of the validation loss, while the training loss falls


def warn_before_start(config: RunConfig, warmup: int, epochs: Iterable[tuple[str, float]]) -> list[str]:
    """Warnings about settings, before the first step.

    Args:
        config: settings of the run.
        warmup: updates until the peak learning rate.
        epochs: name and number of epochs of each corpus.
    """
    found = [
        f"{count:.1f} epochs of {name}; beyond {MAX_EPOCHS} epochs repeated data helps less and less"
        for name, count in epochs
        if count > MAX_EPOCHS
    ]
    if warmup > config.steps / 2:
        found.append(f"the warm-up takes {warmup} of {config.steps} steps; schedule.warmup is usually below a tenth")
    return found


def overfitting_warning(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Warning of overfitting: the validation loss rises while the training loss falls; None otherwise.

    Args:
        rows: metrics of the run so far; the last row has a validation loss.
    """
    at = [i for i, row in enumerate(rows) if row.get("valid_loss") is not None]
    if len(at) < RISES + 2:
        return None
    means = []  # mean training loss between two validations, since single steps are noisy
    for first, last in zip(at[-RISES - 2 :], at[-RISES - 1 :], strict=False):
        losses = [row["loss"] for row in rows[first + 1 : last + 1] if row.get("loss") is not None]
        if not losses:
            return None
        means.append(sum(losses) / len(losses))
    valid = [rows[i]["valid_loss"] for i in at[-RISES - 1 :]]
    rising = all(a < b for a, b in itertools.pairwise(valid))
    falling = all(a > b for a, b in itertools.pairwise(means))
    if not (rising and falling):
        return None
    best = min((rows[i] for i in at), key=lambda row: row["valid_loss"])
    return (
        f"overfitting: the validation loss has risen {RISES} times in a row ({valid[0]:.4f} to {valid[-1]:.4f}) while "
        f"the training loss fell; the lowest was at step {best['step']} ({best['valid_loss']:.4f})"
    )
