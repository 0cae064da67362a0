"""Scores of items as lm-evaluation-harness 0.4 computes them; does not import torch.

| kind | request | verdict |
|---|---|---|
| multiple_choice | log p(delimiter + choice given context) | largest sum; `accuracy_norm`: largest sum / characters |
| schema | log p(delimiter + target given each context) | largest sum |
| greedy | log p(delimiter + target given context) | every token is the most likely one |
| perplexity | log p(text), in disjoint windows, the last one with full context | none |

Context and continuation are encoded as `encode_pairs` does.
"""

import math
import random
import re
from collections.abc import Iterator, Sequence

from gpt2train.data.template import start_ids
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary
from gpt2train.errors import UserError
from gpt2train.evaluate.scoring_request import Score, ScoringRequest, encode_pairs
from gpt2train.evaluate.tasks.description import Task
from gpt2train.evaluate.tasks.items import Item, pick
from gpt2train.evaluate.tasks.verdict import Plan, Verdict

SHOT_END = "\n\n"
SEED = 1234  # its --seed of the examples


def plan_items(task: Task, items: Sequence[Item], count: int, tokenizer: Tokenizer, context: int) -> list[Plan]:
    """Return the requests of the first `count` items; the examples are drawn from all.

    Raises:
        UserError: the tokenizer has no token for a continuation.
    """
    if task.kind == "perplexity":
        before = start_ids(tokenizer)[-1:]
        texts = encode_ordinary(tokenizer, [item.targets[0] for item in items[:count]])
        return [Plan(tuple(rolling_windows([*before, *ids], context))) for ids in texts]
    pairs: list[tuple[str, str]] = []
    for item, examples in zip(items[:count], draw_examples(items, task.shots, count), strict=True):
        shown = "".join(_example(example, task) for example in examples)
        pairs += [(shown + before, task.delimiter + after) for before in item.contexts for after in item.targets]
    encoded = iter(encode_pairs(tokenizer, pairs))
    plans = []
    for number, item in enumerate(items[:count], 1):
        own = [next(encoded) for _ in range(item.choices)]
        if any(not pair.target for pair in own):
            raise UserError(f"item {number}: the tokenizer has no token for a continuation; remove the item")
        truncated = any(len(pair.context) + len(pair.target) > context + 1 for pair in own)
        plans.append(Plan(tuple(pair.request(context) for pair in own), truncated))
    return plans


def draw_examples(items: Sequence[Item], shots: int, count: int) -> list[list[Item]]:
    """Draw the examples before each of the first `count` items, from all items but the one itself.

    The rule of lm-evaluation-harness 0.4 for a task that has one split: one generator for all items in their order.
    """
    if not shots:
        return [[] for _ in range(count)]
    generator = random.Random(SEED)
    drawn = []
    for item in items[:count]:
        others = [example for example in generator.sample(items, shots + 1) if example != item][:shots]
        if len(others) < shots:  # further rows are equal to the item
            others = generator.sample([example for example in items if example != item], shots)
        drawn.append(others)
    return drawn


def _example(item: Item, task: Task) -> str:
    return pick(item.contexts, item.answer) + task.delimiter + pick(item.targets, item.answer) + SHOT_END


def rolling_windows(tokens: Sequence[int], context: int) -> Iterator[ScoringRequest]:
    """Split a sequence into windows that score every token but the first one once.

    All windows are disjoint but for the last one, which begins earlier so that it has full context.
    """
    targets, scored = len(tokens) - 1, 0
    while scored < targets:
        new = min(context, targets - scored)
        end = scored + new
        yield ScoringRequest(tuple(tokens[max(0, end - context) : end + 1]), new)
        scored = end


def decide(task: Task, item: Item, scores: Sequence[Score]) -> Verdict:
    """Return the verdict on an item from the scores of its requests."""
    log_probs = tuple(score.log_prob for score in scores)
    if task.kind == "perplexity":
        text, total = item.targets[0], math.fsum(log_probs)
        words, size = len(re.split(r"\s+", text)), len(text.encode())
        return Verdict((total,), {"log_prob": total, "words": words, "bytes": size})
    if task.kind == "greedy":
        return Verdict(log_probs, {"correct": float(all(scores[0].greedy)), "log_prob": log_probs[0]})
    best = log_probs.index(max(log_probs))
    values = {"correct": float(best == item.answer)}
    if task.kind == "multiple_choice":
        by_length = [value / len(text) for value, text in zip(log_probs, item.targets, strict=True)]
        values["correct_norm"] = float(by_length.index(max(by_length)) == item.answer)
    return Verdict(log_probs, values, best)
