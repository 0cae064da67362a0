"""Log-probabilities of given tokens under a model, in batches of unequal sequences.

Sequences are sorted by length and padded on the right; with causal attention nothing a sequence sees lies behind it,
so padding changes nothing. Logits are made only of the scored positions and only over the vocabulary proper, never
over the rows that pad it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.errors import RunError
from gpt2train.model.gpt2 import GPT2

BATCH_TOKENS = 4096  # input tokens of a batch, padding included
LOGIT_ROWS = 1024  # rows of logits alive at a time: 206 MB in float32 at a vocabulary of 50,257

Report = Callable[[int, int], None]


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


def score(
    model: GPT2, spans: Sequence[Span], batch_tokens: int = BATCH_TOKENS, report: Report | None = None
) -> list[Score]:
    """Score every span, each exactly once; the answers come in the order of the spans.

    Args:
        model: in evaluation mode.
        spans: each of 2 … context + 1 tokens (the last one is never fed in).
        batch_tokens: input tokens of a batch; a memory limit that does not change the answers beyond rounding.
        report: told after every batch how many spans are done and how many there are.

    Raises:
        RunError: the model gives numbers that are not finite.
    """
    order = sorted(range(len(spans)), key=lambda i: (-len(spans[i].tokens), i))
    scores: dict[int, Score] = {}
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // (len(spans[order[start]].tokens) - 1))
        batch = order[start : start + rows]
        for index, answer in zip(batch, _score_batch(model, [spans[i] for i in batch]), strict=True):
            scores[index] = answer
        start += len(batch)
        if report is not None:
            report(start, len(order))
    return [scores[index] for index in range(len(spans))]


@torch.inference_mode()
def _score_batch(model: GPT2, spans: Sequence[Span]) -> list[Score]:
    device = model.wte.weight.device
    longest = max(len(span.tokens) for span in spans) - 1
    tokens = torch.zeros(len(spans), longest, dtype=torch.int64)
    for row, span in enumerate(spans):
        tokens[row, : len(span.tokens) - 1] = torch.tensor(span.tokens[:-1])
    hidden = model.hidden(tokens.to(device))
    # Position p predicts token p + 1, so the last `scored` tokens are predicted by the last `scored` inputs.
    rows = [row for row, span in enumerate(spans) for _ in range(span.scored)]
    places = [place for span in spans for place in range(len(span.tokens) - 1 - span.scored, len(span.tokens) - 1)]
    targets = torch.tensor([token for span in spans for token in span.tokens[-span.scored :]], device=device)
    log_probs, greedy = _score_targets(model, hidden[rows, places], targets)
    if not torch.isfinite(log_probs).all():
        raise RunError("the model gives numbers that are not finite: its weights are damaged or its training diverged")
    answers, at = [], 0
    for span in spans:
        part = slice(at, at + span.scored)
        answers.append(Score(tuple(log_probs[part].tolist()), tuple(greedy[part].tolist())))
        at += span.scored
    return answers


def _score_targets(model: GPT2, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and whether it has the greatest logit; [rows] each, on the CPU."""
    matrix = model.wte.weight[: model.shape.vocab]
    log_probs, greedy = [], []
    for start in range(0, len(targets), LOGIT_ROWS):
        logits = F.linear(hidden[start : start + LOGIT_ROWS], matrix).float()
        target = targets[start : start + LOGIT_ROWS]
        log_probs.append(logits.gather(1, target.unsqueeze(1)).squeeze(1) - logits.logsumexp(1))
        greedy.append(logits.argmax(1) == target)
    return torch.cat(log_probs).cpu(), torch.cat(greedy).cpu()


def perplexity(nats: float, limit: float = 700.0) -> float:
    """exp(nats) to 6 significant digits, the exponent capped so that the result is a finite number of JSON."""
    return significant(math.exp(min(nats, limit)))


def significant(value: float, digits: int = 6) -> float:
    """Round to significant digits, so that a result file does not change with the last bits of a sum."""
    return float(f"{value:.{digits}g}")
