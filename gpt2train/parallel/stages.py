"""Which layers each stage of a pipeline has: arithmetic alone, no torch.

A stage is a contiguous run of layers; the first has the embeddings as well, the last the head. A pipeline is as slow
as its heaviest stage, so the heaviest one is made as light as can be.
"""

from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

# Looking tokens up costs next to nothing, but backward fills a gradient as large as the table. Measured on one core,
# forward and backward: 0.31 of a layer where the head is 13.4 (50,304 x 384), 0.05 where it is 2.2 (8,192 x 384).
EMBEDDING = 1 / 40


def head_weight(shape: Shape) -> float:
    """FLOPs of the output projection, in layers: at 117m (layers of 768, vocabulary 50,304) it weighs as 5.

    A layer has 12 H^2 weights and attends to half the context on average, two products of H a token: 24 H^2 + 2 T H
    FLOPs a token forward. The head has V H weights: 2 V H. Backward doubles both.
    """
    width = shape.hidden
    return 2 * shape.padded_vocab * width / (24 * width**2 + 2 * shape.context * width)


def stage_layers(shape: Shape, stages: int) -> list[range]:
    """The layers of each stage, with embeddings and head weighed by their cost.

    Raises:
        UserError: there are fewer layers than stages.
    """
    head = head_weight(shape)
    return split_layers(shape.layers, stages, head * EMBEDDING, head)


def split_layers(layers: int, stages: int, first: float = 0.0, last: float = 0.0) -> list[range]:
    """Cut layers into stages so that the heaviest one is as light as can be; of several such cuts, the most even one.

    Args:
        layers: how many there are; each weighs 1.
        stages: how many to make, each with at least one layer.
        first: weight that the first stage carries beside its layers.
        last: weight that the last stage carries beside its layers.

    Raises:
        UserError: there are fewer layers than stages.
    """
    if layers < stages:
        raise UserError(f"{layers} layers do not fill {stages} pipeline stages; make at most {layers} stages")
    weights = [1.0] * stages
    weights[0] += first
    weights[-1] += last
    counts = [1] * stages
    for _ in range(layers - stages):
        # Where two weigh the same, the later one: under 1F1B it holds the activations of fewer micro-batches.
        lightest = min(range(stages), key=lambda stage: (weights[stage], -stage))
        weights[lightest] += 1
        counts[lightest] += 1
    ends = [sum(counts[: stage + 1]) for stage in range(stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
