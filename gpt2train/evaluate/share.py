"""Scoring by several processes: batches are dealt out, and each answer comes back exactly once.

Megatron-LM deals passages out by a sampler that fills the last round up with passages of the first and still divides
by the number of all: its counts are wrong unless the processes divide it. Here each answer is counted.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import torch
import torch.distributed as dist

from gpt2train.errors import RunError
from gpt2train.evaluate.span import Score, Span

T = TypeVar("T")


def share(things: Sequence[T], group: dist.ProcessGroup) -> Sequence[T]:
    """Those of this process: one of every `size of the group`, in turn."""
    return things[dist.get_rank(group) :: dist.get_world_size(group)]


def gather(spans: Sequence[Span], mine: Mapping[int, Score], group: dist.ProcessGroup) -> list[Score]:
    """Put the answers of all processes together, in the order of the spans; every process gets them all.

    Args:
        spans: all of them, the same on every process.
        mine: what this process has scored, by the number of the span.

    Raises:
        RunError: a span was scored by none of them, or by several.
    """
    ends = list(accumulate(span.scored for span in spans))
    # Sums in which every place is filled by one process: x + 0 is x to the last bit.
    log_probs = torch.zeros(ends[-1] if ends else 0)
    greedy = torch.zeros(len(log_probs), dtype=torch.int32)
    counts = torch.zeros(len(spans), dtype=torch.int32)
    for index, answer in mine.items():
        part = slice(ends[index] - spans[index].scored, ends[index])
        log_probs[part], greedy[part] = torch.tensor(answer.log_probs), torch.tensor(answer.greedy, dtype=torch.int32)
        counts[index] = 1
    for tensor in (log_probs, greedy, counts):
        dist.all_reduce(tensor, group=group)
    wrong = (counts != 1).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise RunError(
            f"{len(wrong)} of {len(spans)} sequences were not scored once each (number {first}: {counts[first]} "
            "times); no score is given"
        )
    values, right = log_probs.tolist(), greedy.bool().tolist()
    starts = [end - span.scored for end, span in zip(ends, spans, strict=True)]
    return [Score(tuple(values[a:b]), tuple(right[a:b])) for a, b in zip(starts, ends, strict=True)]


def check_same(spans: Sequence[Span], group: dist.ProcessGroup) -> None:
    """Compare what the processes are about to score.

    Raises:
        RunError: it differs.
    """
    digest = hashlib.sha256(repr([(span.tokens, span.scored) for span in spans]).encode()).digest()[:8]
    number = torch.tensor([int.from_bytes(digest, "little", signed=True)])
    least, most = number.clone(), number.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    if least != most:
        raise RunError("the processes were given different passages; give every machine the same file and tokenizer")
