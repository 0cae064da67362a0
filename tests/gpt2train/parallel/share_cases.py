"""Cases of distributed scoring: the part of each process and its result; run by `run_cases.py`."""

import dataclasses
import math
from typing import Any

import torch.distributed as dist

from gpt2train.errors import RunError
from gpt2train.evaluate.scoring import batches, gather, score, score_shared, share
from gpt2train.evaluate.scoring_request import Score, ScoringRequest
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise


def _model() -> GPT2:
    return initialise(GPT2(Shape(vocab=300, layers=2, heads=2, hidden=32, context=16)), 3).eval()


def _spans(count: int) -> list[ScoringRequest]:
    sizes = [2 + 7 * number % 15 for number in range(count)]
    return [
        ScoringRequest(tuple((number + 3 * place) % 300 for place in range(size)), 1 + number % (size - 1))
        for number, size in enumerate(sizes)
    ]


def equal(count: int) -> dict[str, Any]:
    """Comparison of the scores of all processes with those of one, bit for bit, and the share of this process."""
    spans, progress = _spans(count), []
    alone = score(_model(), spans, 40)
    shared = score(_model(), spans, 40, lambda done, total: progress.append((done, total)), dist.group.WORLD)
    mine = sum(map(len, share(batches(spans, 40, 16), dist.group.WORLD)))
    same_trees = score_shared(_model(), spans, 40) == score_shared(_model(), spans, 40, group=dist.group.WORLD)
    return {
        "same": alone == shared and same_trees,
        "count": len(shared),
        "mine": mine,
        "progress": progress[-1:] or [(0, 0)],
    }


def wrong() -> dict[str, str]:
    """Messages for a span that is missing, scored twice or different between processes, and for a failing process."""
    spans, rank, world = _spans(7), dist.get_rank(), dist.get_world_size()
    answers = dict(enumerate(score(_model(), spans)))
    mine: dict[int, Score] = {index: answer for index, answer in answers.items() if index % world == rank}
    missing = {index: answer for index, answer in mine.items() if index != 4}
    doubled = mine | ({2: answers[2]} if rank == 0 else {})
    other = [*spans[:-1], dataclasses.replace(spans[-1], scored=1 + rank % 2)]
    broken = _model()
    if rank == 1:
        broken.ln_f.weight.data.fill_(math.nan)
    calls = {
        "whole": lambda: gather(spans, mine, dist.group.WORLD),
        "missing": lambda: gather(spans, missing, dist.group.WORLD),
        "doubled": lambda: gather(spans, doubled, dist.group.WORLD),
        "other": lambda: score(_model(), other, 40, None, dist.group.WORLD),
        "broken": lambda: score(broken, spans, 40, None, dist.group.WORLD),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = ""
        except RunError as error:
            said[name] = str(error)
    return said
