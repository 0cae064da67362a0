"""Scoring by several processes: batches are distributed round-robin, and each score is gathered exactly once.

Megatron-LM distributes passages with a sampler that pads the last round with passages of the first one, but divides by
the number of passages: its counts are wrong unless the number of processes divides it. Here scores are counted.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import torch
import torch.distributed as dist

from gpt2train.errors import RunError
from gpt2train.evaluate.scoring_request import Score, ScoringRequest

T = TypeVar("T")


def share(items: Sequence[T], group: dist.ProcessGroup) -> Sequence[T]:
    """Return the items of this rank, distributed round-robin over the group."""
    return items[dist.get_rank(group) :: dist.get_world_size(group)]


def gather(requests: Sequence[ScoringRequest], local: Mapping[int, Score], group: dist.ProcessGroup) -> list[Score]:
    """Gather the scores of all ranks on every rank, in the order of the requests.

    Args:
        requests: all requests, equal on every rank.
        local: scores of this rank, by index of the request.
        group: processes that share the work.

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
        log_probs[part], greedy[part] = (
            torch.tensor(answer.log_probs),
            torch.tensor(answer.greedy, dtype=torch.int32),
        )
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
    values, right = log_probs.tolist(), greedy.bool().tolist()
    starts = [end - request.scored for end, request in zip(ends, requests, strict=True)]
    return [Score(tuple(values[a:b]), tuple(right[a:b])) for a, b in zip(starts, ends, strict=True)]


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
