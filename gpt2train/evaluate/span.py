"""What is asked of a model and what it answers: a sequence whose end is scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gpt2train.model.shape import Shape


class Cut(Protocol):
    """A model that is cut over processes (`gpt2train.parallel.decode.Team`)."""

    shape: Shape

    def score(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[int], places: Sequence[int], targets: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of each target after a place of a sequence, and whether it is the likeliest one there."""


@dataclass(frozen=True)
class Span:
    """A sequence of token ids, of which the last `scored` are to be scored; at least one stays unscored."""

    tokens: tuple[int, ...]
    scored: int


@dataclass(frozen=True)
class Score:
    """Of each scored token its log-probability (natural, float32) and whether it is the most likely one."""

    log_probs: tuple[float, ...]
    greedy: tuple[bool, ...]

    @property
    def log_prob(self) -> float:
        """Log-probability of all scored tokens together."""
        return sum(self.log_probs)
