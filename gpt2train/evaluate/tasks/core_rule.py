"""Scores of items as nanochat computes DCLM's CORE; does not import torch.

A prompt is the examples, each followed by an empty line, and the item with one of its choices. The tokens that are
scored follow from the prompts: behind the longest common prefix of all choices (multiple_choice), the longest common
suffix (schema), behind the prompt without its target (greedy). The choice with the largest mean log-probability is the
answer. A prompt that is longer than the model's context loses tokens at its start.

Paper: Li et al. 2024, "DataComp-LM". Items are taken in nanochat's order, so that the examples are those of nanochat.
"""

import math
import random
from collections.abc import Sequence
from itertools import takewhile

from gpt2train.data.template import start_ids
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary
from gpt2train.evaluate.scoring_request import Score, ScoringRequest
from gpt2train.evaluate.tasks.description import Task
from gpt2train.evaluate.tasks.items import Item, pick
from gpt2train.evaluate.tasks.verdict import Plan, Verdict

ORDER_SEED = 1337  # nanochat shuffles the items of a task
SEED = 1234  # of the examples, plus the number of the item
Tokens = tuple[int, ...]


def core_order(count: int) -> list[int]:
    """Return the order in which nanochat scores the rows of a data file."""
    order = list(range(count))
    random.Random(ORDER_SEED).shuffle(order)
    return order


def plan_items(task: Task, items: Sequence[Item], tokenizer: Tokenizer, context: int) -> list[Plan]:
    """Return the requests of items in nanochat's order (`core_order`), from which examples are drawn."""
    prompts: list[str] = []
    for item, examples in zip(items, draw_examples(items, task.shots), strict=True):
        prompts += _prompts(task, item, examples)
    start = tuple(start_ids(tokenizer))
    encoded = iter((*start, *ids) for ids in encode_ordinary(tokenizer, prompts))
    plans = []
    for item in items:
        sequences = [next(encoded) for _ in range(2 if task.kind == "greedy" else item.choices)]
        scored = _scored(task, sequences)
        if task.kind == "greedy":
            sequences = sequences[1:]
        requests = tuple(_request(ids, count, context) for ids, count in zip(sequences, scored, strict=True))
        plans.append(Plan(requests, any(len(ids) > context for ids in sequences)))
    return plans


def draw_examples(items: Sequence[Item], shots: int) -> list[list[Item]]:
    """Draw the examples before each item from all items but the one itself: a generator for each, by its number."""
    found = []
    for number in range(len(items)):
        others = [other for other in range(len(items)) if other != number] if shots else []
        drawn = random.Random(SEED + number).sample(others, shots)
        found.append([items[other] for other in drawn])
    return found


def _prompts(task: Task, item: Item, examples: Sequence[Item]) -> list[str]:
    """Return a prompt for each choice; of a greedy match one without the target, and one with it."""
    shown = "".join(
        f"{_context(task, example)}{task.delimiter}{pick(example.targets, example.answer)}\n\n" for example in examples
    )
    if task.kind == "greedy":
        begin = shown + _context(task, item) + task.delimiter
        return [begin.strip(), begin + item.targets[0]]
    return [shown + before + task.delimiter + after for before in item.contexts for after in item.targets]


def _context(task: Task, item: Item) -> str:
    text = pick(item.contexts, item.answer)
    return text.strip() if task.kind == "greedy" else text


def _scored(task: Task, sequences: Sequence[Tokens]) -> list[int]:
    """Return the number of scored tokens at the end of each sequence."""
    if task.kind == "schema":
        return [_common([sequence[::-1] for sequence in sequences])] * len(sequences)
    same = _common(sequences)
    return [len(sequence) - same for sequence in (sequences[1:] if task.kind == "greedy" else sequences)]


def _common(sequences: Sequence[Tokens]) -> int:
    """Length of the longest common prefix."""
    rows = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda row: len(set(row)) == 1, rows))


def _request(tokens: Tokens, scored: int, context: int) -> ScoringRequest | None:
    """Return the request for the last tokens of a prompt; a prompt of nanochat has at most `context` tokens."""
    kept = tokens[-context:]
    scored = min(scored, len(kept) - 1)
    return ScoringRequest(kept, scored) if scored else None


def decide(task: Task, item: Item, scores: Sequence[Score | None]) -> Verdict:
    """Return the verdict on an item from the scores of its requests."""
    if task.kind == "greedy":
        [score] = scores
        if score is None:
            return Verdict((None,), {"correct": 0.0})
        return Verdict((score.log_prob,), {"correct": float(all(score.greedy))})
    losses = [math.nan if score is None else -score.log_prob / len(score.log_probs) for score in scores]
    best = losses.index(min(losses))  # as nanochat, also where a choice has no token of its own (NaN)
    means = tuple(None if math.isnan(loss) else -loss for loss in losses)
    return Verdict(means, {"correct": float(best == item.answer)}, best)
