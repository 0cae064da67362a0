"""Number of parameters of a rank; does not import torch."""

import math
from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.model.families import block_sizes, on_stage, shard_dim, sizes
from gpt2train.model.shape import Shape
from gpt2train.parallel.pipeline_stages import stage_layers


@dataclass(frozen=True)
class Piece:
    """Part of the model on one pipeline rank.

    Attributes:
        layers: number of transformer blocks.
        first: True if it has the embeddings.
        last: True if it has the head, tied to the token embedding, and the last LayerNorm.
    """

    layers: int
    first: bool
    last: bool


def pieces(settings: TrainSettings, shape: Shape) -> list[Piece]:
    """Return the part of the model on each pipeline rank; the stages of an interleaved rank are added up."""
    pp, stages = settings.parallel.pp, settings.parallel.virtual_pipeline_stages
    stage_ranges = stage_layers(shape, pp * stages)
    return [
        Piece(sum(len(layers) for layers in stage_ranges[rank::pp]), rank == 0, rank == pp - 1) for rank in range(pp)
    ]


def block_parameters(shape: Shape, tp: int) -> int:
    """Return the parameters of one block on one tensor-parallel rank."""
    return sum(_on_rank(f"blocks.0.{name}", size, shape, tp) for name, size in block_sizes(shape).items())


def matrix_parameters(shape: Shape, tp: int) -> int:
    """Return the parameters of the matrices of one block on one tensor-parallel rank."""
    named = {f"blocks.0.{name}": size for name, size in block_sizes(shape).items() if len(size) > 1}
    return sum(_on_rank(name, size, shape, tp) for name, size in named.items())


def parameters(piece: Piece, shape: Shape, tp: int, padding: int | None = None) -> int:
    """Return the parameters of one rank.

    Args:
        piece: part of the model on the pipeline rank; if the first and the last rank differ, each has a copy of the
            tied embedding.
        shape: shape of the model.
        tp: tensor-parallel degree.
        padding: number to a multiple of which the vocabulary is padded; by default 128, Megatron-LM uses 128 x tp.
    """
    vocab = shape.padded_vocab if padding is None else -(-shape.vocab // padding) * padding
    count = piece.layers * block_parameters(shape, tp)
    for name, size in sizes(shape).items():
        if not name.startswith("blocks.") and on_stage(name, shape, first=piece.first, last=piece.last):
            padded = (vocab, *size[1:]) if shard_dim(name, shape) == 0 else size
            count += _on_rank(name, padded, shape, tp)
    return count


def _on_rank(name: str, size: tuple[int, ...], shape: Shape, tp: int) -> int:
    return math.prod(size) // (1 if shard_dim(name, shape) is None else tp)
