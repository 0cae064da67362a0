"""Log-probabilities of given tokens under a model, in batches of unequal sequences.

Sequences are sorted by length and padded on the right; with causal attention nothing a sequence sees lies behind it,
so padding changes nothing. Logits are made only of the scored positions and only over the vocabulary proper, never
over the rows that pad it. Several processes share the batches of one process, so that their numbers are its numbers.
"""

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from gpt2train.errors import RunError
from gpt2train.evaluate.share import check_same, gather, share
from gpt2train.evaluate.span import Cut, Score, Span
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.mesh import together

BATCH_TOKENS = 4096  # input tokens of a batch, padding included
LOGIT_ROWS = 1024  # rows of logits alive at a time: 206 MB in float32 at a vocabulary of 50,257

Report = Callable[[int, int], None]


def score(
    model: GPT2 | Cut,
    spans: Sequence[Span],
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[Score]:
    """Score every span, each exactly once; the answers come in the order of the spans.

    Args:
        model: whole and in evaluation mode, or one that is cut over processes.
        spans: each of 2 … context + 1 tokens (the last one is never fed in).
        batch_tokens: input tokens of a batch; a memory limit that does not change the answers beyond rounding.
        report: told after every batch how many spans are done and how many there are.
        group: processes that share the work, each with the whole model; all of them call this, and all get the
            answers of all spans, equal to those of one process to the last bit. Needs a backend for the CPU.

    Raises:
        RunError: the model gives numbers that are not finite; processes were given different spans.
    """
    if group is None:
        return _in_order(_score_batches(model, spans, batches(spans, batch_tokens), report), len(spans))
    check_same(spans, group)
    mine = share(batches(spans, batch_tokens), group)
    return gather(spans, together(lambda: _score_batches(model, spans, mine, report), group), group)


def batches(spans: Sequence[Span], batch_tokens: int) -> list[list[int]]:
    """Numbers of the spans that are computed together, the longest first; `batch_tokens` bounds the padded size."""
    order = sorted(range(len(spans)), key=lambda i: (-len(spans[i].tokens), i))
    made, start = [], 0
    while start < len(order):
        rows = max(1, batch_tokens // (len(spans[order[start]].tokens) - 1))
        made.append(order[start : start + rows])
        start += rows
    return made


def _in_order(scores: dict[int, Score], count: int) -> list[Score]:
    return [scores[index] for index in range(count)]


def _score_batches(
    model: GPT2 | Cut, spans: Sequence[Span], made: Sequence[Sequence[int]], report: Report | None
) -> dict[int, Score]:
    """Answers of the spans in these batches, by their numbers."""
    total = sum(map(len, made))
    scores: dict[int, Score] = {}
    for batch in made:
        some = [spans[index] for index in batch]
        scores.update(zip(batch, _score_batch(model, some), strict=True))
        if report is not None:
            report(len(scores), total)
    return scores


def _score_batch(model: GPT2 | Cut, spans: Sequence[Span]) -> list[Score]:
    sequences = [span.tokens[:-1] for span in spans]
    # Position p predicts token p + 1, so the last `scored` tokens are predicted by the last `scored` inputs.
    rows = [row for row, span in enumerate(spans) for _ in range(span.scored)]
    places = [place for span in spans for place in range(len(span.tokens) - 1 - span.scored, len(span.tokens) - 1)]
    targets = [token for span in spans for token in span.tokens[-span.scored :]]
    ask = functools.partial(score_here, model) if isinstance(model, GPT2) else model.score
    log_probs, greedy = ask(sequences, rows, places, targets)
    if not torch.isfinite(log_probs).all():
        raise RunError("the model gives numbers that are not finite: its weights are damaged or its training diverged")
    answers, at = [], 0
    for span in spans:
        part = slice(at, at + span.scored)
        answers.append(Score(tuple(log_probs[part].tolist()), tuple(greedy[part].tolist())))
        at += span.scored
    return answers


@torch.inference_mode()
def score_here(
    model: GPT2,
    sequences: Sequence[Sequence[int]],
    rows: Sequence[int],
    places: Sequence[int],
    targets: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """`Cut.score` of a model that lies whole in this process; float32 and bool [targets], on the CPU."""
    device = model.wte.weight.device
    tokens = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    hidden = model.hidden(tokens.to(device))[rows, places]
    wanted = torch.tensor(targets, device=device)
    matrix = model.wte.weight[: model.shape.vocab]
    log_probs, greedy = [], []
    for start in range(0, len(wanted), LOGIT_ROWS):
        logits = F.linear(hidden[start : start + LOGIT_ROWS], matrix).float()
        target = wanted[start : start + LOGIT_ROWS]
        log_probs.append(logits.gather(1, target.unsqueeze(1)).squeeze(1) - logits.logsumexp(1))
        greedy.append(logits.argmax(1) == target)
    return torch.cat(log_probs).cpu(), torch.cat(greedy).cpu()


def perplexity(nats: float, limit: float = 700.0) -> float:
    """exp(nats) to 6 significant digits, the exponent capped so that the result is a finite number of JSON."""
    return significant(math.exp(min(nats, limit)))


def significant(value: float, digits: int = 6) -> float:
    """Round to significant digits, so that a result file does not change with the last bits of a sum."""
    return float(f"{value:.{digits}g}")
