"""Parameters of a model out of the tensors of Megatron's ranks, and the sizes of the model."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.megatron_args import number, options_of_args
from gpt2train.convert.megatron_folder import check_shape
from gpt2train.convert.megatron_names import FINAL, HEAD, TOP, layer_names, rows_from, split_dim
from gpt2train.errors import UserError
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights, check_sizes
from gpt2train.model.shape import PADDING, Shape, pad_vocabulary
from gpt2train.store.files import check_new

Tensors = dict[str, Tensor]


def collect_tensors(chunks: list[list[Tensors]], folder: Path) -> dict[str, list[Tensor]]:
    """Map our name of every parameter to its tensor on each tensor-parallel rank; layers are numbered over all chunks.

    The chunks are in the order of the model, also for an interleaved pipeline.
    """
    parts: dict[str, list[Tensor]] = {}
    layers = 0
    for ranks in chunks:
        local_layers = {int(found[1]) for name in ranks[0] if (found := re.match(r"encoder\.layers\.(\d+)\.", name))}
        pairs = TOP | FINAL
        for index, local in enumerate(sorted(local_layers)):
            pairs = pairs | layer_names(layers + index, local)
        known = {*pairs.values(), HEAD}
        for name in sorted(ranks[0].keys() - known):
            raise UserError(f"{folder} has a tensor {name}, which is not part of a GPT-2; it cannot be converted")
        for ours, theirs in pairs.items():
            if theirs in ranks[0]:
                if not all(theirs in rank for rank in ranks):
                    raise UserError(f"{folder}: {theirs} is missing on a tensor-parallel rank; copy the whole folder")
                parts[ours] = [rank[theirs] for rank in ranks]
        layers += len(local_layers)
    for ours, theirs in (TOP | FINAL).items():
        if ours not in parts:
            raise UserError(f"{folder} has no tensor {theirs}; it belongs to another model or is incomplete")
    return parts


def shape_of(
    names: Iterable[str],
    rows: int,
    hidden: int,
    positions: int,
    args: Mapping[str, Any],
    vocab: int | None,
    heads: int | None,
    folder: Path,
) -> Shape:
    """Sizes of a model, from its tensors and `args`.

    Args:
        names: our names of the parameters.
        rows: rows of the token embedding, with padding.
        hidden: width of the residual stream.
        positions: rows of the position embedding.
        args: arguments in the checkpoint.
        vocab: vocabulary size, if the user gives it.
        heads: number of attention heads, if the checkpoint has no `args`.
        folder: folder of the checkpoint, for error messages.

    Raises:
        UserError: the heads or the vocabulary are not known, or the vocabulary is larger than the embedding.
    """
    heads = number(args, "num_attention_heads") or heads
    if heads is None:
        raise UserError(f"{folder} does not record its number of attention heads; give --heads N")
    vocab = vocab or number(args, "vocab_size")
    if vocab is None:
        stated = f"{folder} has {rows:,} embedding rows with padding and does not record the vocabulary size"
        raise UserError(f"{stated}; give --tokenizer DIR or --vocab N")
    if vocab > rows:
        raise UserError(f"{folder} has {rows:,} embedding rows, fewer than the vocabulary of {vocab:,}")
    layers = 1 + max((int(name.split(".")[1]) for name in names if name.startswith("blocks.")), default=-1)
    return Shape(vocab, layers, heads, hidden, positions, options=options_of_args(args))


def padded(name: str, value: Tensor, rows: int, is_weight: bool) -> Tensor:
    """Give the token embedding this number of rows; other tensors are returned as they are.

    Megatron's padding grows with the number of ranks; rows beyond `rows` are padding in both. Moments of new padding
    are 0.
    """
    if name != "wte.weight":
        return value
    value = value[:rows]
    if is_weight:
        return pad_vocabulary(value, rows)
    return torch.cat((value, value.new_zeros(rows - len(value), value.shape[1])))


def merged(name: str, parts: list[Tensor], shape: Shape, version: int, is_weight: bool = True) -> LazyTensor:
    """Merge the parts of a parameter, or of one of its moments, from all tensor-parallel ranks, on request.

    The checkpoint version defines the row order of the fused projection.
    """
    dim, size = split_dim(name), list(parts[0].shape)
    if dim is not None:
        size[dim] = sum(part.shape[dim] for part in parts)
    if name == "wte.weight":
        size[0] = shape.padded_vocab

    def read(dtype: torch.dtype) -> Tensor:
        if dim is None:
            return parts[0].to(dtype)
        heads = shape.heads // len(parts)
        shards = (rows_from(version, part, heads) if ".qkv." in name else part for part in parts)
        return padded(name, torch.cat([part.to(dtype) for part in shards], dim=dim), shape.padded_vocab, is_weight)

    return LazyTensor(tuple(size), read)


def megatron_rows(shape: Shape, tp: int) -> int:
    """Rows of the token embedding in Megatron: a multiple of 128 for each tensor-parallel rank."""
    return -(-shape.vocab // (PADDING * tp)) * PADDING * tp


def check_layout(folder: Path, weights: LazyWeights, tp: int, pp: int) -> None:
    """Check that a model can be written to a folder in this layout.

    Raises:
        UserError: it is no GPT-2, the layout does not divide it, or the folder is not empty.
    """
    check_shape(weights.shape, tp, pp)
    check_new(folder)
    check_sizes({name: stored.size for name, stored in weights.tensors.items()}, sizes(weights.shape), "the model")
