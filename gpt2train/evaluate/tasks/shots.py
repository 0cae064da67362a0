"""Draw of the examples before an item, as lm-evaluation-harness and nanochat draw them; does not import torch."""

import random
from collections.abc import Sequence

from gpt2train.evaluate.tasks.items import Item

LM_EVAL_SEED = 1234  # its --seed of the examples
CORE_ORDER_SEED = 1337  # nanochat shuffles the items of a task
CORE_SEED = 1234  # plus the number of the item


def lm_eval_examples(items: Sequence[Item], shots: int, count: int) -> list[list[Item]]:
    """Return the examples of the first `count` items, from all items but the one itself.

    The rule of lm-evaluation-harness 0.4 for a task that has one split: one generator for all items in their order.
    """
    if not shots:
        return [[] for _ in range(count)]
    generator = random.Random(LM_EVAL_SEED)
    drawn = []
    for item in items[:count]:
        others = [example for example in generator.sample(items, shots + 1) if example != item][:shots]
        if len(others) < shots:  # further rows are equal to the item
            others = generator.sample([example for example in items if example != item], shots)
        drawn.append(others)
    return drawn


def core_order(count: int) -> list[int]:
    """Return the order in which nanochat scores the rows of a data file."""
    order = list(range(count))
    random.Random(CORE_ORDER_SEED).shuffle(order)
    return order


def core_examples(items: Sequence[Item], shots: int) -> list[list[Item]]:
    """Return the examples of each item, from all items but the one itself: a generator for each item, by its number."""
    found = []
    for number in range(len(items)):
        others = [other for other in range(len(items)) if other != number] if shots else []
        drawn = random.Random(CORE_SEED + number).sample(others, shots)
        found.append([items[other] for other in drawn])
    return found
