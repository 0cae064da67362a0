"""Number of parameters of a rank; does not import torch."""

import itertools
import math
from dataclasses import dataclass
from functools import cache

from gpt2train.config import TrainSettings
from gpt2train.model.families import MODELS, block_sizes, on_stage, shard_dim, sizes
from gpt2train.model.shape import Shape
from gpt2train.parallel.pipeline_stages import stage_layers


@dataclass(frozen=True)
class Piece:
    """Part of the model on one pipeline rank."""

    layers: int  # number of transformer blocks
    first: bool  # True if it has the embeddings
    last: bool  # True if it has the head, tied to the token embedding, and the last LayerNorm
    blocks: tuple[int, ...] = ()
    """Numbers of the blocks, for a family whose blocks differ; by default all are like the first one."""


def pieces(settings: TrainSettings, shape: Shape) -> list[Piece]:
    """Return the part of the model on each pipeline rank; the stages of an interleaved rank are added up."""
    pp, stages = settings.parallel.pp, settings.parallel.virtual_pipeline_stages
    stage_ranges = stage_layers(shape, pp * stages)
    found = []
    for rank in range(pp):
        blocks = tuple(block for layers in stage_ranges[rank::pp] for block in layers)
        found.append(Piece(len(blocks), rank == 0, rank == pp - 1, blocks))
    return found


@cache
def block_parameters(shape: Shape, tp: int, block: int = 0) -> int:
    """Return the parameters of one block on one tensor-parallel rank."""
    return sum(_on_rank(f"blocks.{block}.{name}", size, shape, tp) for name, size in block_sizes(shape, block).items())


def blocks_parameters(piece: Piece, shape: Shape, tp: int) -> int:
    """Return the parameters of all blocks of a piece on one tensor-parallel rank."""
    return sum(count * block_parameters(shape, tp, start) for start, count in kinds_of(piece, shape).items())


def matrix_parameters(piece: Piece, shape: Shape, tp: int) -> int:
    """Return the parameters of the matrices of all blocks of a piece on one tensor-parallel rank."""
    total = 0
    for start, count in kinds_of(piece, shape).items():
        matrices = {name: size for name, size in block_sizes(shape, start).items() if len(size) > 1}
        total += count * sum(_on_rank(f"blocks.{start}.{name}", size, shape, tp) for name, size in matrices.items())
    return total


def kinds_of(piece: Piece, shape: Shape) -> dict[int, int]:
    """Return the number of blocks of each kind, by the first block of that kind."""
    starts = MODELS[shape.family].first_blocks(shape)
    kinds = [max(start for start in starts if start <= block) for block in piece.blocks] or [0] * piece.layers
    return {start: kinds.count(start) for start in starts}


@cache
def parameters(piece: Piece, shape: Shape, tp: int, padding: int | None = None) -> int:
    """Return the parameters of one rank.

    Args:
        piece: part of the model on the pipeline rank; each of its stages has a copy of what it uses outside the blocks,
            such as the tied embedding.
        shape: shape of the model.
        tp: tensor-parallel degree.
        padding: number to a multiple of which the vocabulary is padded; by default 128, Megatron-LM uses 128 x tp.
    """
    vocab = shape.padded_vocab if padding is None else -(-shape.vocab // padding) * padding
    count = blocks_parameters(piece, shape, tp)
    stages = stages_of(piece, shape)
    for name, size in sizes(shape).items():
        if not name.startswith("blocks."):
            padded = (vocab, *size[1:]) if shard_dim(name, shape) == 0 else size
            count += _on_rank(name, padded, shape, tp) * sum(on_stage(name, shape, blocks) for blocks in stages)
    return count


def stages_of(piece: Piece, shape: Shape) -> list[tuple[int, ...]]:
    """Blocks of each pipeline stage of a rank: runs of consecutive ones, since its stages are not neighbours."""
    if not piece.blocks:
        return [(*([0] if piece.first else []), *([shape.layers - 1] if piece.last else []))]
    runs = itertools.groupby(enumerate(piece.blocks), lambda pair: pair[1] - pair[0])
    return [tuple(block for _, block in run) for _, run in runs]


def _on_rank(name: str, size: tuple[int, ...], shape: Shape, tp: int) -> int:
    return math.prod(size) // (1 if shard_dim(name, shape, tp) is None else tp)
