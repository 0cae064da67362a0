"""Work that activation checkpointing repeats; tests/gpt2train/plan compares it with the FLOPs of simulated steps."""

import math

from gpt2train.config import TrainSettings
from gpt2train.model.families import MODELS, block_sizes, is_residual, last_product
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token

POINTWISE = 0.05  # of a step's time, for norms and activation functions, which have no FLOPs to speak of


def stored_products(settings: TrainSettings, shape: Shape, tp: int, start: int = 0) -> list[str]:
    """Return the weights of a block whose products selective checkpointing stores: those with a bias.

    Those of row-parallel layers are reduced in place under tensor parallelism, and not stored then. The last one is
    needed for a dropout mask alone (`gpt2train.parallel.activation_checkpointing`).
    """
    block = block_sizes(shape, start)
    last = last_product(shape, start)
    alone = [*block.values()].count(block.get(last, ())) == 1
    unused = "" if settings.model.dropout or not alone else last
    matrices = [name for name, size in block.items() if len(size) > 1 and name != unused]
    kept = [name for name in matrices if tp == 1 or not is_residual(name, shape)]
    return [name for name in kept if f"{name.removesuffix('weight')}bias" in block]


def recomputed_share(settings: TrainSettings, shape: Shape, tp: int) -> float:
    """Return the FLOPs that are repeated, as a share of those of forward and backward."""
    mode, context = settings.parallel.activation_checkpointing, settings.model.context
    if mode == "none":
        return 0.0
    family = MODELS[shape.family]
    starts, lengths = family.first_blocks(shape), (context, *family.lengths(shape)[1:])
    repeated = 0.0
    for start, end, length in zip(starts, (*starts[1:], shape.layers), lengths, strict=False):
        done = set(stored_products(settings, shape, tp, start)) if mode == "selective" else set()
        done |= set() if settings.model.dropout else {last_product(shape, start)}
        products = attended = 0
        for name, size in block_sizes(shape, start).items():
            reads = name.removesuffix(".weight").endswith(family.encoder_readers)
            attended += context if reads and not attended else 0
            if len(size) > 1 and name not in done:
                products += 2 * math.prod(size) * (context if reads else length)
        if mode == "full":
            products += 4 * shape.heads * shape.head_dim * length * (length + attended)
        repeated += (end - start) * products
    return repeated / (flops_per_token(shape, context) * context)


def slowdown(settings: TrainSettings, shape: Shape, tp: int) -> float:
    """Return the time of computation as a multiple of that without recomputation."""
    if settings.parallel.activation_checkpointing == "none":
        return 1.0
    return 1 + POINTWISE + recomputed_share(settings, shape, tp)


def repeated_reduces(settings: TrainSettings) -> float:
    """Return the all-reduces of tensor parallelism that a block repeats: those of the inputs, and of the attention.

    That at the end of the block is repeated for a dropout mask alone. A gather or a scatter of a sequence is half.
    """
    p = settings.parallel
    if p.activation_checkpointing == "none":
        return 0.0
    end = 0.5 if p.sequence_parallel else 1.0
    return (1.5 if p.sequence_parallel else 1.0) + (end if settings.model.dropout else 0.0)
