"""Assignment of layers to pipeline stages. Imports no torch.

A stage is a contiguous range of layers; the first one also has the embeddings, the last one the head. A pipeline is as
slow as its most expensive stage, so the cost of that stage is minimised.
"""

import math

from gpt2train.errors import UserError
from gpt2train.model.families import block_sizes
from gpt2train.model.shape import Shape

# Cost of the embedding as a fraction of that of the head. The lookup is almost free, but backward fills a gradient as
# large as the table. Measured on one core, forward and backward, in layers: 0.31 against 13.4 of the head
# (50,304 x 384), 0.05 against 2.2 (8,192 x 384).
EMBEDDING = 1 / 40


def head_weight(shape: Shape) -> float:
    """FLOPs of the output projection in units of a layer; about 5 at 117m (hidden 768, vocabulary 50,304).

    A layer has W weights in matrices, 12 H^2 in GPT-2, and attends to half the context on average, by two products of
    all heads, H wide in GPT-2, per token: 2 W + 2 T H FLOPs per token in the forward. The head has V H weights: 2 V H
    FLOPs. Backward doubles both.
    """
    weights = sum(math.prod(size) for size in block_sizes(shape).values() if len(size) > 1)
    if shape.labels:  # one row per sample, not per token
        return 0.0
    return 2 * shape.padded_vocab * shape.hidden / (2 * weights + 2 * shape.context * shape.heads * shape.head_dim)


def stage_layers(shape: Shape, stages: int) -> list[range]:
    """Layers of each stage, balanced with the cost of embeddings and head; errors as of `split_layers`."""
    head = head_weight(shape)
    return split_layers(shape.layers, stages, head * EMBEDDING, head)


def split_layers(layers: int, stages: int, first: float = 0.0, last: float = 0.0) -> list[range]:
    """Split layers into stages so that the most expensive stage is as cheap as possible, and the split as even.

    A layer costs 1; `first` and `last` are additional costs of the first and the last stage.

    Raises:
        UserError: there are fewer layers than stages.
    """
    if layers < stages:
        raise UserError(f"{layers} layers do not fill {stages} pipeline stages; make at most {layers} stages")
    costs = [1.0] * stages
    costs[0] += first
    costs[-1] += last
    counts = [1] * stages
    for _ in range(layers - stages):
        # Of equal stages the later one, since under 1F1B it stores the activations of fewer micro-batches.
        cheapest = min(range(stages), key=lambda stage: (costs[stage], -stage))
        costs[cheapest] += 1
        counts[cheapest] += 1
    ends = [sum(counts[: stage + 1]) for stage in range(stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
