"""Checkpoints of Megatron-LM, written: the weights, in any tensor-parallel and pipeline layout."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.checkpoint.format import Names, Version
from gpt2train.checkpoint.megatron import FILES, TRACKER
from gpt2train.checkpoint.megatron_args import make_args
from gpt2train.checkpoint.megatron_names import (
    FINAL,
    HEAD,
    TOP,
    cut_along,
    layer_names,
    old_name,
    rows_to,
)
from gpt2train.checkpoint.weights import Weights, check_sizes, pad_vocabulary, sizes
from gpt2train.errors import UserError
from gpt2train.files import folder_whole
from gpt2train.model.shape import PADDING, Shape


def write_megatron(
    folder: Path,
    weights: Weights,
    *,
    tp: int = 1,
    pp: int = 1,
    version: Version = 3,
    names: Names = "new",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write `release/mp_rank_…/model_optim_rng.pt` and the tracker, whole or not at all.

    The name `release` tells Megatron-LM that there is no optimizer to load, and to begin at iteration 0. In memory is
    what one rank holds.

    Args:
        folder: not there yet, or empty.
        tp: tensor-parallel ranks; a divisor of the heads.
        pp: pipeline stages; a divisor of the layers.
        version: of the checkpoint, which decides the row order of the fused projection.
        names: `old` are those of Megatron-LM up to 2021.
        dtype: of all tensors.

    Raises:
        UserError: the layout does not divide the model, or something is at `folder`.
    """
    shape = weights.shape
    if tp < 1 or pp < 1 or shape.heads % tp or shape.layers % pp:
        raise UserError(
            f"{tp} x {pp} ranks do not divide the model: --tp must divide {shape.heads} heads, "
            f"--pp must divide {shape.layers} layers"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give another place")
    check_sizes({name: stored.size for name, stored in weights.tensors.items()}, sizes(shape), "the model")
    rows = -(-shape.vocab // (PADDING * tp)) * PADDING * tp
    with folder_whole(folder) as draft:
        for stage in range(pp):
            for rank in range(tp):
                state = {
                    "args": make_args(shape, rows, tp, pp, dtype, 0),
                    "checkpoint_version": float(version),
                    "iteration": 0,
                    "model": _rank(weights, (rank, tp), (stage, pp), rows, version, names, dtype),
                }
                place = draft / "release" / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else ""))
                place.mkdir(parents=True)
                torch.save(state, place / FILES[0])
        (draft / TRACKER).write_text("release", encoding="utf-8")


def _rank(
    weights: Weights,
    tensor: tuple[int, int],
    pipeline: tuple[int, int],
    rows: int,
    version: Version,
    names: Names,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """The `model` of one rank: nested above, flat names within the transformer, as Megatron-LM's modules save it."""
    (stage, pp), shape = pipeline, weights.shape
    each = shape.layers // pp
    inside: dict[str, str] = {}
    for local in range(each):
        inside |= layer_names(stage * each + local, local)
    if stage == pp - 1:
        inside |= FINAL

    def piece(name: str) -> Tensor:
        return _cut(name, weights.tensors[name].read(dtype), shape, tensor, rows, version)

    encoder = {theirs: piece(ours) for ours, theirs in inside.items()}
    if names == "old":
        encoder = {old_name(name): value for name, value in encoder.items()}
    model: dict[str, Any] = {}
    if stage == 0:
        model["embedding"] = {name.split(".")[1]: {"weight": piece(ours)} for ours, name in TOP.items()}
    module = "transformer" if names == "old" else "encoder"
    model[module] = {name.removeprefix(f"{module}."): value for name, value in encoder.items()}
    found: dict[str, Any] = {"language_model": model}
    if pp > 1 and stage == pp - 1:
        found[HEAD.split(".")[0]] = {"weight": piece("wte.weight")}
    return found


def _cut(name: str, value: Tensor, shape: Shape, tensor: tuple[int, int], rows: int, version: Version) -> Tensor:
    """What one tensor-parallel rank has of a tensor; a copy, since torch saves the whole of what a view is of."""
    rank, tp = tensor
    if name == "wte.weight":
        value = pad_vocabulary(value, rows)
    along = cut_along(name)
    if along is None:
        return value.clone()
    part = value.chunk(tp, dim=along)[rank]
    if ".qkv." in name:
        part = rows_to(version, part, shape.heads // tp)
    return part.clone(memory_format=torch.contiguous_format)
