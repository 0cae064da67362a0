"""Log-probabilities of given tokens under a model, in batches of sequences of different lengths.

    score           each sequence by itself, sorted by length and padded on the right, which changes no result since
                    attention is causal; in this process, or by a model over several
    score_shared    each common prefix once (`gpt2train.evaluate.token_tree`), and so the logits of a node that several
                    requests score, and the last MLP only where a token is scored; in this process alone. The results
                    equal those of `score` up to rounding.

Logits are computed at the scored positions only, without the padding rows of the vocabulary. Processes that each have
the whole model share the batches round-robin, and each score is gathered exactly once, so that the results equal those
of one process. Megatron-LM distributes passages with a sampler that pads the last round with passages of the first one,
but divides by the number of passages: its counts are wrong unless the number of processes divides it. Here scores are
counted.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.errors import RunError
from gpt2train.evaluate.scoring_request import BATCH_TOKENS, DistributedScorer, Report, Score, ScoringRequest
from gpt2train.evaluate.token_tree import ROOT, TokenTree, build_trees, tree_batches
from gpt2train.inference.decoder import score_targets
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import MODELS
from gpt2train.parallel.mesh import all_or_raise

NOT_FINITE = "the model gives numbers that are not finite: its weights are damaged or its training diverged"
T = TypeVar("T")


def score(
    model: CausalLM | DistributedScorer,
    requests: Sequence[ScoringRequest],
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[Score]:
    """Score every request exactly once, as `gpt2train.evaluate.evaluation.Scorer.score`.

    Args:
        model: model in this process, in evaluation mode, or distributed over several processes.
        requests: requests of 2 to context + 1 tokens each.
        batch_tokens: input tokens per batch; a memory limit that changes the scores by rounding only.
        report: called after every batch with the numbers of finished and of all requests.
        group: processes that share the work, each with the whole model. All of them call this function, and all get
            all scores, bitwise equal to those of one process. It needs a CPU backend.
    """
    independent_length = MODELS[model.shape.family].independent_length(model.shape)

    def compute(batch: Sequence[int]) -> Mapping[int, Score]:
        return dict(zip(batch, score_batch(model, [requests[index] for index in batch]), strict=True))

    return _all_scores(requests, batches(requests, batch_tokens, independent_length), compute, len, report, group)


def score_shared(
    model: CausalLM | DistributedScorer,
    requests: Sequence[ScoringRequest],
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[Score]:
    """Score every request exactly once and common prefixes once; arguments as of `score`.

    A model over several processes, or one whose logits depend on the length of a batch, computes common prefixes for
    each request.
    """
    longest = max((len(request.tokens) - 1 for request in requests), default=0)
    # In a tree every request has the rotary frequencies of the longest one.
    if not isinstance(model, CausalLM) or longest > MODELS[model.shape.family].independent_length(model.shape):
        return score(model, requests, batch_tokens, report, group)
    trees = build_trees(requests, model.shape.hidden, batch_tokens)
    batches = tree_batches(trees, model.shape.hidden, batch_tokens)
    rows = [[[trees[index] for index in row] for row in batch] for batch in batches]

    def count(batch: Sequence[Sequence[TokenTree]]) -> int:
        return sum(len(tree.requests) for row in batch for tree in row)

    return _all_scores(requests, rows, functools.partial(_score_trees, model), count, report, group)


def _all_scores(
    requests: Sequence[ScoringRequest],
    batches: Sequence[T],
    compute: Callable[[T], Mapping[int, Score]],
    count: Callable[[T], int],
    report: Report | None,
    group: dist.ProcessGroup | None,
) -> list[Score]:
    """Score batches by functions of a batch: its scores by the indices of the requests, and its number of requests."""

    def computed(own: Sequence[T]) -> dict[int, Score]:
        total = sum(map(count, own))
        scores: dict[int, Score] = {}
        for batch in own:
            scores.update(compute(batch))
            if report is not None:
                report(len(scores), total)
        return scores

    if group is None:
        scores = computed(batches)
        return [scores[index] for index in range(len(requests))]
    check_same(requests, group)
    return gather(requests, all_or_raise(lambda: computed(share(batches, group)), group), group)


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
    values, right = iter(log_probs.tolist()), iter(greedy.tolist())
    return [_next_score(values, right, request.scored) for request in requests]


def _next_score(log_probs: Iterator[float], greedy: Iterator[bool], scored: int) -> Score:
    """Take the numbers of a request."""
    return Score(tuple(islice(log_probs, scored)), tuple(islice(greedy, scored)))


class TreeMask:
    """Attention mask in the place of a layer's KV cache; it stores nothing, so all layers share it."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values unchanged, with the mask."""
        return key, value, self.mask


@torch.inference_mode()
def _score_trees(model: CausalLM, rows: Sequence[Sequence[TokenTree]]) -> dict[int, Score]:
    """Return the scores of the requests in a batch of rows of trees, by index."""
    placed = [
        (row, start, tree)
        for row, trees in enumerate(rows)
        for start, tree in zip(accumulate(map(len, trees), initial=0), trees, strict=False)
    ]
    size = max(start + len(tree) for _, start, tree in placed)
    tokens, depths = torch.zeros(2, len(rows), size, dtype=torch.int64)
    for row, start, tree in placed:
        tokens[row, start : start + len(tree)] = torch.tensor(tree.tokens)
        depths[row, start : start + len(tree)] = torch.tensor(tree.depths)
    # Each node that a request scores gets its logits once; a target is scored by the logits of its node.
    logit_rows: dict[tuple[int, int], int] = {}
    at = [
        logit_rows.setdefault((row, start + node), len(logit_rows))
        for row, start, tree in placed
        for node in chain.from_iterable(tree.nodes)
    ]
    targets = [target for _, _, tree in placed for target in chain.from_iterable(tree.targets)]
    places = [row for row, _ in logit_rows], [node for _, node in logit_rows]
    device = model.wte.weight.device
    with _last_mlp_at(model, places):
        if len(placed) == len(rows) and all(tree.is_chain for _, _, tree in placed):
            hidden = model.hidden(tokens.to(device))
        else:
            mask = TreeMask(torch.from_numpy(_ancestors(placed, (len(rows), size, size))).unsqueeze(1).to(device))
            caches: list[Any] = [mask] * len(model.blocks)
            hidden = model.hidden(tokens.to(device), caches, depths.to(device))
    log_probs, greedy = model.log_probs(hidden[places], *torch.tensor([targets, at], device=device))
    if not torch.isfinite(log_probs).all():
        raise RunError(NOT_FINITE)
    values, right = iter(log_probs.tolist()), iter(greedy.tolist())
    return {
        index: _next_score(values, right, len(scored))
        for _, _, tree in placed
        for index, scored in zip(tree.requests, tree.targets, strict=True)
    }


@contextmanager
def _last_mlp_at(model: CausalLM, places: tuple[list[int], list[int]]) -> Iterator[None]:
    """Have the last block compute its MLP at some positions alone, where nothing after it needs the others.

    Args:
        model: model whose blocks begin their MLP with `ln_2` and end it with `down`; others compute all positions.
        places: rows and positions.
    """
    block = list(model.blocks.values())[-1]
    norm, down = (getattr(block, name, None) for name in ("ln_2", "down"))
    if norm is None or down is None:
        yield
        return
    before, after = norm.forward, down.forward
    full: list[Tensor] = []

    def select(x: Tensor) -> Tensor:
        full.append(torch.zeros_like(x))
        return before(x[places])

    def spread(inner: Tensor) -> Tensor:
        full[0][places] = after(inner)
        return full[0]

    norm.forward, down.forward = select, spread
    try:
        yield
    finally:
        del norm.forward, down.forward  # the methods of the classes again


def _ancestors(
    placed: Sequence[tuple[int, int, TokenTree]], size: tuple[int, int, int]
) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
    """Return the attention mask, bool [rows, length, length]: each node sees itself and its ancestors.

    Padding sees itself alone: a row without a visible token would be NaN.
    """
    mask = np.zeros(size, dtype=np.bool_)
    mask[:, range(size[1]), range(size[1])] = True
    for row, start, tree in placed:
        seen = mask[row, start : start + len(tree), start : start + len(tree)]
        for node, parent in enumerate(tree.parents):
            if parent != ROOT:
                seen[node, : parent + 1] = seen[parent, : parent + 1]
    return mask


def share(items: Sequence[T], group: dist.ProcessGroup) -> Sequence[T]:
    """Return the items of this rank, distributed round-robin over the group."""
    return items[dist.get_rank(group) :: dist.get_world_size(group)]


def gather(requests: Sequence[ScoringRequest], local: Mapping[int, Score], group: dist.ProcessGroup) -> list[Score]:
    """Gather the scores of all ranks, which each has by the index of the request, in the order of the requests.

    Raises:
        RunError: a request was not scored by exactly one rank.
    """
    ends = list(accumulate(request.scored for request in requests))
    # Each element is set by one rank only, so the sum is exact: x + 0 is x to the last bit.
    log_probs = torch.zeros(ends[-1] if ends else 0)
    greedy = torch.zeros(len(log_probs), dtype=torch.int32)
    counts = torch.zeros(len(requests), dtype=torch.int32)
    for index, answer in local.items():
        part = slice(ends[index] - requests[index].scored, ends[index])
        log_probs[part], greedy[part] = torch.tensor(answer.log_probs), torch.tensor(answer.greedy).int()
        counts[index] = 1
    for tensor in (log_probs, greedy, counts):
        dist.all_reduce(tensor, group=group)
    wrong = (counts != 1).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise RunError(
            f"{len(wrong)} of {len(requests)} sequences were not scored once each (number {first}: {counts[first]} "
            "times); no score is given"
        )
    values, right = iter(log_probs.tolist()), iter(greedy.bool().tolist())
    return [_next_score(values, right, request.scored) for request in requests]


def check_same(requests: Sequence[ScoringRequest], group: dist.ProcessGroup) -> None:
    """Check that all ranks have the same requests.

    Raises:
        RunError: the requests differ.
    """
    digest = hashlib.sha256(repr([(request.tokens, request.scored) for request in requests]).encode()).digest()[:8]
    number = torch.tensor([int.from_bytes(digest, "little", signed=True)])
    least, greatest = number.clone(), number.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    dist.all_reduce(greatest, dist.ReduceOp.MAX, group=group)
    if least != greatest:
        raise RunError("the processes have different passages; give every machine the same file and tokenizer")
