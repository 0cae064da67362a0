"""Verdict on one item, and the requests that it needs; does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpt2train.evaluate.scoring_request import ScoringRequest


@dataclass(frozen=True)
class Plan:
    """Scoring requests of an item, one for each choice or window; None for a choice that has no token of its own."""

    requests: tuple[ScoringRequest | None, ...]
    truncated: bool = False  # True if the prompt is longer than the model's context


@dataclass(frozen=True)
class Verdict:
    """Log-probabilities of an item's choices and the answer of the model.

    Attributes:
        log_probs: natural log-probability of each choice; by the rule core their mean over the tokens, None for a
            choice without a token of its own.
        values: numbers of the item that the metrics add up, by column.
        prediction: index of the chosen choice, None without choices.
    """

    log_probs: tuple[float | None, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    prediction: int | None = None
