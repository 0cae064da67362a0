"""Writing of Megatron-LM checkpoints with weights only, in any tensor-parallel and pipeline layout."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.megatron_args import make_args
from gpt2train.convert.megatron_folder import FILES, TRACKER, rank_name
from gpt2train.convert.megatron_names import FINAL, HEAD, TOP, layer_names, old_name, rows_to, split_dim
from gpt2train.convert.megatron_parts import check_layout, megatron_rows, padded
from gpt2train.convert.settings import Names, Version
from gpt2train.model.lazy_weights import LazyWeights
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

    def shard(ours: str, rank: int) -> Tensor:
        """Part of a tensor on a rank; a copy, since torch saves the whole storage of a view."""
        value = padded(ours, weights.tensors[ours].read_within(ours, dtype), rows, is_weight=True)
        dim = split_dim(ours)
        part = value if dim is None else value.chunk(tp, dim=dim)[rank]
        part = rows_to(version, part, shape.heads // tp) if ".qkv." in ours else part
        return part.clone(memory_format=torch.contiguous_format)

    with atomic_folder(folder) as draft:
        for stage, rank in product(range(pp), range(tp)):
            state = {
                "args": make_args(shape, rows, tp, pp, dtype, 0),
                "checkpoint_version": float(version),
                "iteration": 0,
                "model": _rank_state(partial(shard, rank=rank), shape.layers // pp, stage, pp, names),
            }
            rank_folder = draft / "release" / rank_name(rank, stage, pp)
            rank_folder.mkdir(parents=True)
            torch.save(state, rank_folder / FILES[0])
        (draft / TRACKER).write_text("release", encoding="utf-8")


def _rank_state(shard: Callable[[str], Tensor], layers: int, stage: int, pp: int, names: Names) -> dict[str, Any]:
    """Return the `model` of one rank: nested at the top, flat names inside the transformer, as Megatron-LM saves it."""
    pairs: dict[str, str] = {}
    for local in range(layers):
        pairs |= layer_names(stage * layers + local, local)
    if stage == pp - 1:
        pairs |= FINAL
    module, rename = ("transformer", old_name) if names == "old" else ("encoder", str)
    blocks = {rename(theirs).removeprefix(f"{module}."): shard(ours) for ours, theirs in pairs.items()}
    model: dict[str, Any] = {}
    if stage == 0:
        model["embedding"] = {name.split(".")[1]: {"weight": shard(ours)} for ours, name in TOP.items()}
    state: dict[str, Any] = {"language_model": model | {module: blocks}}
    if pp > 1 and stage == pp - 1:
        state[HEAD.split(".")[0]] = {"weight": shard("wte.weight")}
    return state
