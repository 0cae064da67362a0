"""Log-probabilities of given tokens under a model, in batches of sequences of different lengths.

Sequences are sorted by length and padded on the right; attention is causal, so padding does not change the results.
Logits are computed at the scored positions only, without the padding rows of the vocabulary. Several processes share
the same batches as one process, so that the results are equal.
"""

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gpt2train.errors import RunError
from gpt2train.evaluate.distributed_scoring import check_same, gather, share
from gpt2train.evaluate.scoring_request import BATCH_TOKENS, DistributedScorer, Report, Score, ScoringRequest
from gpt2train.inference.decoder import score_targets
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import MODELS
from gpt2train.parallel.mesh import all_or_raise

NOT_FINITE = "the model gives numbers that are not finite: its weights are damaged or its training diverged"


def score(
    model: CausalLM | DistributedScorer,
    requests: Sequence[ScoringRequest],
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[Score]:
    """Score every request exactly once; the scores are in the order of the requests.

    Args:
        model: model in this process, in evaluation mode, or distributed over several processes.
        requests: requests of 2 to context + 1 tokens each (the last token is never an input).
        batch_tokens: input tokens per batch; a memory limit that changes the scores by rounding only.
        report: called after every batch with the numbers of finished and of all requests.
        group: processes that share the work, each with the whole model. All of them call this function, and all get
            all scores, bitwise equal to those of one process. It needs a CPU backend.

    Raises:
        RunError: the model's outputs are not finite, or the processes have different requests.
    """
    independent_length = MODELS[model.shape.family].independent_length(model.shape)
    plan = functools.partial(batches, requests, batch_tokens, independent_length)
    if group is None:
        return _in_order(_score_batches(model, requests, plan(), report), len(requests))
    check_same(requests, group)
    local_batches = share(plan(), group)
    return gather(requests, all_or_raise(lambda: _score_batches(model, requests, local_batches, report), group), group)


def batches(requests: Sequence[ScoringRequest], batch_tokens: int, independent_length: int) -> list[list[int]]:
    """Return batches as indices of requests, longest first.

    Args:
        requests: scoring requests.
        batch_tokens: maximum size of a batch, including padding; a longer request is a batch of its own.
        independent_length: inputs up to which requests of different lengths may share a batch
            (`gpt2train.model.families.ModelFamily`).
    """
    order = sorted(range(len(requests)), key=lambda i: (-len(requests[i].tokens), i))
    index_batches, start = [], 0
    while start < len(order):
        longest = len(requests[order[start]].tokens) - 1
        chosen = order[start : start + max(1, batch_tokens // longest)]
        if longest > independent_length:
            chosen = [index for index in chosen if len(requests[index].tokens) - 1 == longest]
        index_batches.append(chosen)
        start += len(chosen)
    return index_batches


def _in_order(scores: dict[int, Score], count: int) -> list[Score]:
    return [scores[index] for index in range(count)]


def _score_batches(
    model: CausalLM | DistributedScorer,
    requests: Sequence[ScoringRequest],
    index_batches: Sequence[Sequence[int]],
    report: Report | None,
) -> dict[int, Score]:
    """Return the scores of the requests in these batches, by index."""
    total = sum(map(len, index_batches))
    scores: dict[int, Score] = {}
    for batch in index_batches:
        batch_requests = [requests[index] for index in batch]
        scores.update(zip(batch, score_batch(model, batch_requests), strict=True))
        if report is not None:
            report(len(scores), total)
    return scores


def score_batch(model: CausalLM | DistributedScorer, requests: Sequence[ScoringRequest]) -> list[Score]:
    """Score the requests of one batch.

    Raises:
        RunError: the model's outputs are not finite.
    """
    sequences = [request.tokens[:-1] for request in requests]
    # Position p predicts token p + 1, so the last `scored` tokens are predicted by the last `scored` inputs.
    rows = [row for row, request in enumerate(requests) for _ in range(request.scored)]
    positions = [
        position
        for request in requests
        for position in range(len(request.tokens) - 1 - request.scored, len(request.tokens) - 1)
    ]
    targets = [token for request in requests for token in request.tokens[-request.scored :]]
    scorer = functools.partial(score_targets, model) if isinstance(model, CausalLM) else model.score
    log_probs, greedy = scorer(sequences, rows, positions, targets)
    if not torch.isfinite(log_probs).all():
        raise RunError(NOT_FINITE)
    answers, start = [], 0
    for request in requests:
        part = slice(start, start + request.scored)
        answers.append(Score(tuple(log_probs[part].tolist()), tuple(greedy[part].tolist())))
        start += request.scored
    return answers
