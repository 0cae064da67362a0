"""What is asked of a model and what it answers: a sequence whose end is scored."""

from dataclasses import dataclass


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
