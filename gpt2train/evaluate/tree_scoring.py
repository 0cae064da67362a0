"""Log-probabilities under a model in this process, for requests with common prefixes.

Each common prefix is computed once (`gpt2train.evaluate.token_tree`), and so are the logits of a node that several
requests score. The last MLP is computed where a token is scored. The results equal those of
`gpt2train.evaluate.scoring.score` up to rounding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.errors import RunError
from gpt2train.evaluate.distributed_scoring import check_same, gather, share
from gpt2train.evaluate.scoring import NOT_FINITE, score
from gpt2train.evaluate.scoring_request import BATCH_TOKENS, DistributedScorer, Report, Score, ScoringRequest
from gpt2train.evaluate.token_tree import ROOT, TokenTree, build_trees, tree_batches
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import MODELS
from gpt2train.parallel.mesh import all_or_raise


class TreeMask:
    """Attention mask in the place of a layer's KV cache; it stores nothing, so all layers share it."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values unchanged, with the mask."""
        return key, value, self.mask


def score_shared(
    model: CausalLM | DistributedScorer,
    requests: Sequence[ScoringRequest],
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[Score]:
    """Score every request exactly once, common prefixes once; the scores are in the order of the requests.

    Args:
        model: model in this process, in evaluation mode, or distributed over several processes, which computes common
            prefixes for each request, as does one whose logits depend on the length of a batch.
        requests: requests of 2 to context + 1 tokens each.
        batch_tokens: input tokens per batch; a memory limit that changes the scores by rounding only.
        report: called after every batch with the numbers of finished and of all requests.
        group: processes that share the work, as in `gpt2train.evaluate.scoring.score`.

    Raises:
        RunError: the model's outputs are not finite, or the processes have different requests.
    """
    longest = max((len(request.tokens) - 1 for request in requests), default=0)
    # In a tree every request has the rotary frequencies of the longest one.
    if not isinstance(model, CausalLM) or longest > MODELS[model.shape.family].independent_length(model.shape):
        return score(model, requests, batch_tokens, report, group)
    trees = build_trees(requests, model.shape.hidden, batch_tokens)
    batches = tree_batches(trees, model.shape.hidden, batch_tokens)
    if group is None:
        found = _score_batches(model, trees, batches, report)
        return [found[index] for index in range(len(requests))]
    check_same(requests, group)
    own = share(batches, group)
    return gather(requests, all_or_raise(lambda: _score_batches(model, trees, own, report), group), group)


def _score_batches(
    model: CausalLM, trees: Sequence[TokenTree], batches: Sequence[Sequence[Sequence[int]]], report: Report | None
) -> dict[int, Score]:
    """Return the scores of the requests in these batches of rows of trees, by index."""
    total = sum(len(trees[index].requests) for batch in batches for row in batch for index in row)
    scores: dict[int, Score] = {}
    for batch in batches:
        scores.update(_score_batch(model, [[trees[index] for index in row] for row in batch]))
        if report is not None:
            report(len(scores), total)
    return scores


@torch.inference_mode()
def _score_batch(model: CausalLM, rows: Sequence[Sequence[TokenTree]]) -> dict[int, Score]:
    """Return the scores of the requests in a batch of rows of trees, by index."""
    placed = [(row, start, tree) for row, trees in enumerate(rows) for start, tree in _starts(trees)]
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
        index: Score(tuple(islice(values, len(scored))), tuple(islice(right, len(scored))))
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


def _starts(trees: Sequence[TokenTree]) -> Iterator[tuple[int, TokenTree]]:
    """Yield the trees of a row, each with the place of its first node."""
    start = 0
    for tree in trees:
        yield start, tree
        start += len(tree)


def _ancestors(
    placed: Sequence[tuple[int, int, TokenTree]], size: tuple[int, int, int]
) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
    """Return the attention mask, bool [rows, length, length]: each node sees itself and its ancestors.

    Padding sees itself alone: a row without a visible token would be NaN.

    Args:
        placed: row, place of the first node and tree.
        size: shape of the mask.
    """
    mask = np.zeros(size, dtype=np.bool_)
    mask[:, range(size[1]), range(size[1])] = True
    for row, start, tree in placed:
        seen = mask[row, start : start + len(tree), start : start + len(tree)]
        for node, parent in enumerate(tree.parents):
            if parent != ROOT:
                seen[node, : parent + 1] = seen[parent, : parent + 1]
    return mask
