"""How many parameters a rank holds: arithmetic alone, no torch."""

from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.model.shape import Shape
from gpt2train.parallel.stages import stage_layers


@dataclass(frozen=True)
class Piece:
    """What one rank of a pipeline holds.

    Attributes:
        layers: transformer blocks.
        first: whether it has the embeddings.
        last: whether it has the head, tied to the token embedding, and the last LayerNorm.
    """

    layers: int
    first: bool
    last: bool


def pieces(settings: TrainSettings, shape: Shape) -> list[Piece]:
    """The piece of each pipeline rank; an interleaved rank's stages add up."""
    pp, stages = settings.parallel.pp, settings.parallel.stages
    runs = stage_layers(shape, pp * stages)
    return [Piece(sum(len(run) for run in runs[rank::pp]), rank == 0, rank == pp - 1) for rank in range(pp)]


def block_parameters(shape: Shape, tp: int) -> int:
    """Parameters of one block on one tensor-parallel rank.

    The matrices and the biases of column-parallel layers (7 H) are split, LayerNorms and the biases of row-parallel
    layers (6 H) are whole on every rank.
    """
    width = shape.hidden
    return (12 * width**2 + 7 * width) // tp + 6 * width


def parameters(piece: Piece, shape: Shape, tp: int, padding: int | None = None) -> int:
    """Parameters of one rank.

    Args:
        piece: what the rank's place in the pipeline holds; where first and last are two ranks, each has a copy of the
            tied embedding.
        tp: tensor-parallel ranks.
        padding: the vocabulary is padded to a multiple of it; ours is 128 on every layout, Megatron-LM's 128 x tp.
    """
    vocab = shape.padded_vocab if padding is None else -(-shape.vocab // padding) * padding
    count = piece.layers * block_parameters(shape, tp)
    if piece.first or piece.last:
        count += vocab // tp * shape.hidden
    if piece.first:
        count += shape.context * shape.hidden
    if piece.last:
        count += 2 * shape.hidden
    return count
