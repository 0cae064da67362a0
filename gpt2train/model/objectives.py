"""Registry of training objectives: the data that a run learns from, and its loss; does not import torch.

A training is the same for all objectives: layout, optimizer, checkpoints and resume. An objective names the function
that opens its data, and may replace the loss. `next_token` predicts each next token of packed samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpt2train.plugins import NoOptions, Registry
from gpt2train.settings import Settings


def no_metrics(sums: Sequence[float], counted: int) -> dict[str, float]:
    """Metrics of an objective that has none besides the loss."""
    return {}


@dataclass(frozen=True)
class Objective:
    """Specification of an objective.

    Functions are named as "module:function" and imported on first use, since torch takes 1-2 s.

    Attributes:
        data: function of the run's `RunConfig` and of "train" or "valid" that returns a
            `gpt2train.data.dataset.Dataset`, or None if a run has no validation data.
        options: settings model of the settings that only this objective has.
        loss: function of logits, targets and the batch's further tensors that returns the summed loss, a float32
            scalar. By default the cross entropy of the targets, without ever having all logits in memory.
        scores: function of the same arguments that returns a float64 vector of sums for a validation, such as the
            number of right answers.
        sums: length of that vector.
        metrics: function of these sums over the validation set and of its number of counted targets that returns named
            numbers; they are logged as `valid_<name>`.
    """

    data: str
    options: type[Settings] = NoOptions
    loss: str | None = None
    scores: str | None = None
    sums: int = 0
    metrics: Callable[[Sequence[float], int], dict[str, float]] = no_metrics


OBJECTIVES: Registry[Objective] = Registry("objective")
OBJECTIVES.register("next_token", Objective(data="gpt2train.data.training_data:packed_data"))
