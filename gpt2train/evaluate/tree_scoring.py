"""Log-probabilities under a model in this process, for groups of requests with common prefixes.

Each common prefix is computed once (`gpt2train.evaluate.token_tree`), and so are the logits of a node that several
requests score. The results equal those of `gpt2train.evaluate.scoring.score` up to rounding.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from gpt2train.errors import RunError
from gpt2train.evaluate.distributed_scoring import check_same, gather, share
from gpt2train.evaluate.scoring import LOGIT_ROWS, NOT_FINITE, score
from gpt2train.evaluate.scoring_request import BATCH_TOKENS, DistributedScorer, Report, Score, ScoringRequest
from gpt2train.evaluate.token_tree import ROOT, TokenTree, build_trees, tree_batches
from gpt2train.model.causal_lm import CausalLM
from gpt2train.parallel.mesh import all_or_raise


class TreeMask:
    """Attention mask in the place of a layer's KV cache; it stores nothing, so all layers share it."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values unchanged, with the mask."""
        return key, value, self.mask


def score_groups(
    model: CausalLM | DistributedScorer,
    groups: Sequence[Sequence[ScoringRequest]],
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[list[Score]]:
    """Score every request of every group exactly once; the scores are in the order of the requests.

    Args:
        model: model in this process, in evaluation mode, or distributed over several processes, which compute common
            prefixes for each request.
        groups: requests that are likely to have a common prefix.
        batch_tokens: input tokens per batch; a memory limit that changes the scores by rounding only.
        report: called after every batch with the numbers of finished and of all requests.
        group: processes that share the work, as in `gpt2train.evaluate.scoring.score`.

    Raises:
        RunError: the model's outputs are not finite, or the processes have different requests.
    """
    requests = list(chain.from_iterable(groups))
    if not isinstance(model, CausalLM):
        return _by_group(score(model, requests, batch_tokens, report, group), groups)
    trees = build_trees(groups, model.shape.hidden)
    batches = tree_batches(trees, batch_tokens)
    if group is None:
        found = _score_batches(model, trees, batches, report)
        return _by_group([found[index] for index in range(len(requests))], groups)
    check_same(requests, group)
    own = share(batches, group)
    found = all_or_raise(lambda: _score_batches(model, trees, own, report), group)
    return _by_group(gather(requests, found, group), groups)


def _by_group(scores: Iterable[Score], groups: Sequence[Sequence[ScoringRequest]]) -> list[list[Score]]:
    remaining = iter(scores)
    return [[next(remaining) for _ in group] for group in groups]


def _score_batches(
    model: CausalLM, trees: Sequence[TokenTree], batches: Sequence[Sequence[int]], report: Report | None
) -> dict[int, Score]:
    """Return the scores of the requests in these batches of trees, by index."""
    total = sum(len(trees[index].requests) for batch in batches for index in batch)
    scores: dict[int, Score] = {}
    for batch in batches:
        scores.update(_score_batch(model, [trees[index] for index in batch]))
        if report is not None:
            report(len(scores), total)
    return scores


@torch.inference_mode()
def _score_batch(model: CausalLM, trees: Sequence[TokenTree]) -> dict[int, Score]:
    device = model.wte.weight.device
    size = max(map(len, trees))
    tokens = torch.zeros(len(trees), size, dtype=torch.int64)
    for row, tree in enumerate(trees):
        tokens[row, : len(tree)] = torch.tensor(tree.tokens)
    if all(tree.is_chain for tree in trees):
        hidden = model.hidden(tokens.to(device))
    else:
        depths = torch.zeros(len(trees), size, dtype=torch.int64)
        for row, tree in enumerate(trees):
            depths[row, : len(tree)] = torch.tensor(tree.depths)
        mask = TreeMask(torch.from_numpy(_ancestors(trees, size)).unsqueeze(1).to(device))
        hidden = model.hidden(tokens.to(device), [mask] * len(model.blocks), depths.to(device))  # type: ignore[list-item]
    # Each node that a request scores gets its logits once; a pair is a row of these and a target.
    logit_row: dict[tuple[int, int], int] = {}
    rows = [
        logit_row.setdefault((row, node), len(logit_row))
        for row, tree in enumerate(trees)
        for node in chain.from_iterable(tree.nodes)
    ]
    targets = [target for tree in trees for target in chain.from_iterable(tree.targets)]
    chosen = hidden[[row for row, _ in logit_row], [node for _, node in logit_row]]
    log_probs, greedy = _log_probs(model, chosen, torch.tensor(rows), torch.tensor(targets))
    if not torch.isfinite(log_probs).all():
        raise RunError(NOT_FINITE)
    values, right = log_probs.tolist(), greedy.tolist()
    scores, start = {}, 0
    for tree in trees:
        for index, request_targets in zip(tree.requests, tree.targets, strict=True):
            part = slice(start, start + len(request_targets))
            scores[index] = Score(tuple(values[part]), tuple(right[part]))
            start = part.stop
    return scores


def _ancestors(trees: Sequence[TokenTree], size: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
    """Return the attention mask, bool [trees, size, size]: each node sees itself and its ancestors.

    Padding sees itself alone: a row without a visible token would be NaN.
    """
    mask = np.zeros((len(trees), size, size), dtype=np.bool_)
    mask[:, range(size), range(size)] = True
    for row, tree in enumerate(trees):
        seen = mask[row]
        for node, parent in enumerate(tree.parents):
            if parent != ROOT:
                seen[node, : parent + 1] = seen[parent, : parent + 1]
    return mask


def _log_probs(model: CausalLM, hidden: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target after its row of `hidden`, and True where it is the most likely token.

    Args:
        model: model, for its output projection.
        hidden: last hidden states [nodes, hidden].
        rows: row of each target, int64 [targets].
        targets: token ids, int64 [targets].

    Returns:
        float32 [targets] and bool [targets], on the CPU.
    """
    matrix = model.output_weight[: model.shape.vocab]
    log_probs, greedy = torch.zeros(len(targets)), torch.zeros(len(targets), dtype=torch.bool)
    for start in range(0, len(hidden), LOGIT_ROWS):
        here = ((rows >= start) & (rows < start + LOGIT_ROWS)).nonzero().flatten()
        at, target = (rows[here] - start).to(hidden.device), targets[here].to(hidden.device)
        logits = model.cap(F.linear(hidden[start : start + LOGIT_ROWS], matrix)).float()
        log_probs[here] = (logits[at, target] - logits.logsumexp(1)[at]).cpu()
        greedy[here] = (logits.argmax(1)[at] == target).cpu()
    return log_probs, greedy
