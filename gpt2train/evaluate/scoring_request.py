"""Scoring requests and their results: sequences whose last tokens are scored; does not import torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary
from gpt2train.model.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor


BATCH_TOKENS = 4096  # input tokens per batch, including padding

Report = Callable[[int, int], None]  # gets the numbers of finished and of all requests


class DistributedScorer(Protocol):
    """Model distributed over several processes (`gpt2train.inference.distributed_decoder.DistributedModel`)."""

    shape: Shape

    def score(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[int], positions: Sequence[int], targets: Sequence[int]
    ) -> "tuple[Tensor, Tensor]":
        """Score targets, each after a given position of a sequence.

        Args:
            sequences: input token ids.
            rows: index of each target's sequence.
            positions: position in the sequence after which each target follows.
            targets: token ids to score.

        Returns:
            Log-probability of each target, float32 [targets], and True where it is the most likely token, bool
            [targets]; both on the CPU.
        """


@dataclass(frozen=True)
class ScoringRequest:
    """Sequence of token ids whose last `scored` tokens are scored; at least one token is not."""

    tokens: tuple[int, ...]
    scored: int


@dataclass(frozen=True)
class Score:
    """Natural log-probability of each scored token, and True where it is the most likely token."""

    log_probs: tuple[float, ...]
    greedy: tuple[bool, ...]

    @property
    def log_prob(self) -> float:
        """Sum of the log-probabilities."""
        return sum(self.log_probs)


@dataclass(frozen=True)
class Pair:
    """Context and target as token ids; the context is never empty."""

    context: tuple[int, ...]
    target: tuple[int, ...]

    def request(self, context_length: int) -> ScoringRequest:
        """Return the pair as one sequence, left-truncated to the model's context length.

        If the target is longer than the context (a word of hundreds of tokens, such as a URL), only its end is scored.
        """
        return ScoringRequest(
            (self.context + self.target)[-(context_length + 1) :], min(len(self.target), context_length)
        )


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
    """Encode contexts and continuations as lm-evaluation-harness does; each distinct text is encoded once.

    Both are encoded together and split after as many tokens as the context alone has; spaces at the end of the context
    belong to the continuation. A context comes after what the template puts before a text, and an empty one is what a
    document follows (`start_ids`).
    """
    heads = [before.rstrip() for before, _ in pairs]
    wholes = [before + after for before, after in pairs]
    texts = list(dict.fromkeys([*heads, *wholes]))
    ids = dict(zip(texts, encode_ordinary(tokenizer, texts), strict=True))
    prefix, start = tuple(prefix_ids(tokenizer)), tuple(start_ids(tokenizer))
    return [
        Pair((*prefix, *ids[whole][: len(ids[head])]) or start, tuple(ids[whole][len(ids[head]) :]))
        for head, whole in zip(heads, wholes, strict=True)
    ]
