"""What a person should know before hours are lost: too many epochs, a long warm-up, a model that learns by heart."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt2train.config import RunConfig

MANY_EPOCHS = 4  # beyond, repeated data is worth ever less (Muennighoff et al. 2023, "Scaling Data-Constrained LMs")
RISES = 2  # validations in a row that were worse than the one before, while the training loss fell


def before(config: RunConfig, warmup: int, epochs: Iterable[tuple[str, float]]) -> list[str]:
    """What can be seen before the first step.

    Args:
        warmup: updates until the peak learning rate.
        epochs: passes over each corpus.
    """
    found = [
        f"{count:.1f} epochs of {name}; beyond {MANY_EPOCHS} repeated data helps ever less"
        for name, count in epochs
        if count > MANY_EPOCHS
    ]
    if warmup > config.steps / 2:
        found.append(f"the warm-up takes {warmup} of {config.steps} steps; schedule.warmup is usually below a tenth")
    return found


def learns_by_heart(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning when the loss on held-out data rises while that on the training data falls; None while it does not.

    Args:
        rows: metrics of the run so far, the last one with a validation.
    """
    at = [i for i, row in enumerate(rows) if row.get("valid_loss") is not None]
    if len(at) < RISES + 2:
        return None
    means = []  # of the training loss between two validations: single steps are noisy
    for first, last in zip(at[-RISES - 2 :], at[-RISES - 1 :], strict=False):
        losses = [row["loss"] for row in rows[first + 1 : last + 1] if row["loss"] is not None]
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
        f"the validation loss has risen {RISES} times in a row ({valid[0]:.4f} to {valid[-1]:.4f}) while the training "
        f"loss fell: the model learns by heart; the best is that of step {best['step']} ({best['valid_loss']:.4f})"
    )
