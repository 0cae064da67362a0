"""Writing of Megatron-LM checkpoints with weights only, in any tensor-parallel and pipeline layout."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.megatron_args import make_args
from gpt2train.convert.megatron_folder import FILES, TRACKER, rank_name
from gpt2train.convert.megatron_names import FINAL, HEAD, TOP, layer_names, old_name, rows_to, split_dim
from gpt2train.convert.megatron_parts import check_layout, megatron_rows
from gpt2train.convert.settings import Names, Version
from gpt2train.model.lazy_weights import LazyWeights
from gpt2train.model.shape import Shape, pad_vocabulary
from gpt2train.store.files import atomic_folder


def write_megatron(
    folder: Path,
    weights: LazyWeights,
    *,
    tp: int = 1,
    pp: int = 1,
    version: Version = 3,
    names: Names = "new",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write `release/mp_rank_…/model_optim_rng.pt` and the tracker file, atomically.

    From a checkpoint named `release` Megatron-LM loads no optimizer and starts at iteration 0. The weights of one rank
    are in memory at a time.

    Args:
        folder: folder to write; it must not exist, or be empty.
        weights: weights of the model.
        tp: tensor-parallel degree; must divide the heads.
        pp: pipeline stages; must divide the layers.
        version: checkpoint version, which defines the row order of the fused projection.
        names: tensor names; `old` for those of Megatron-LM until 2021.
        dtype: data type of all tensors.

    Raises:
        UserError: the layout does not divide the model, or the folder is not empty.
    """
    shape = weights.shape
    check_layout(folder, weights, tp, pp)
    rows = megatron_rows(shape, tp)
    with atomic_folder(folder) as draft:
        for stage in range(pp):
            for rank in range(tp):
                state = {
                    "args": make_args(shape, rows, tp, pp, dtype, 0),
                    "checkpoint_version": float(version),
                    "iteration": 0,
                    "model": _rank_state(weights, (rank, tp), (stage, pp), rows, version, names, dtype),
                }
                rank_folder = draft / "release" / rank_name(rank, stage, pp)
                rank_folder.mkdir(parents=True)
                torch.save(state, rank_folder / FILES[0])
        (draft / TRACKER).write_text("release", encoding="utf-8")


def _rank_state(
    weights: LazyWeights,
    tensor: tuple[int, int],
    pipeline: tuple[int, int],
    rows: int,
    version: Version,
    names: Names,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Return the `model` of one rank: nested at the top, flat names inside the transformer, as Megatron-LM saves it."""
    (stage, pp), shape = pipeline, weights.shape
    layers_per_stage = shape.layers // pp
    transformer_names: dict[str, str] = {}
    for local in range(layers_per_stage):
        transformer_names |= layer_names(stage * layers_per_stage + local, local)
    if stage == pp - 1:
        transformer_names |= FINAL

    def shard(name: str) -> Tensor:
        return _split(name, weights.tensors[name].read(dtype), shape, tensor, rows, version)

    encoder = {theirs: shard(ours) for ours, theirs in transformer_names.items()}
    if names == "old":
        encoder = {old_name(name): value for name, value in encoder.items()}
    model: dict[str, Any] = {}
    if stage == 0:
        model["embedding"] = {name.split(".")[1]: {"weight": shard(ours)} for ours, name in TOP.items()}
    module = "transformer" if names == "old" else "encoder"
    model[module] = {name.removeprefix(f"{module}."): value for name, value in encoder.items()}
    state: dict[str, Any] = {"language_model": model}
    if pp > 1 and stage == pp - 1:
        state[HEAD.split(".")[0]] = {"weight": shard("wte.weight")}
    return state


def _split(name: str, value: Tensor, shape: Shape, tensor: tuple[int, int], rows: int, version: Version) -> Tensor:
    """Return one tensor-parallel rank's part of a tensor; a copy, since torch saves the whole storage of a view."""
    rank, tp = tensor
    if name == "wte.weight":
        value = pad_vocabulary(value, rows)
    dim = split_dim(name)
    if dim is None:
        return value.clone()
    part = value.chunk(tp, dim=dim)[rank]
    if ".qkv." in name:
        part = rows_to(version, part, shape.heads // tp)
    return part.clone(memory_format=torch.contiguous_format)
