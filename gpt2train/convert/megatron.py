"""Reading of Megatron's checkpoints: weights, and the state of the optimizer.

`gpt2train.convert.megatron_folder` has the folders. Each file of a rank is a pickle with `args`, `checkpoint_version`,
`iteration`, `optimizer` and `model`, or `model0`, `model1` … if a stage has several chunks of an interleaved pipeline.
The random state is skipped. Files are memory-mapped, so that only the requested tensors are read. Distributed
checkpoints are read by `gpt2train.convert.megatron_dist`.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert import megatron_dist
from gpt2train.convert.megatron_args import args_of, check_args, check_tensors
from gpt2train.convert.megatron_folder import COMMON, backend, iteration_folder, rank_files
from gpt2train.convert.megatron_names import EMBEDDING, HEAD, TOP, canonical, split_of
from gpt2train.convert.megatron_optimizer import NotConvertedError
from gpt2train.convert.megatron_parts import Tensors, collect_tensors, merged, shape_of
from gpt2train.convert.megatron_rank_state import open_optimizer
from gpt2train.convert.optimizer_state import OptimizerState
from gpt2train.convert.safe_pickle import PickleStub, read_pickle
from gpt2train.errors import UserError
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyWeights, check_sizes
from gpt2train.settings import flatten

NO_OPTIMIZER = "the optimizer's state is not converted"
# Classes that a checkpoint references besides tensors. The weights do not need them; they become `PickleStub`.
STUBBED = (
    *(f"{module}.{name}" for module in ("megatron.model.enums", "megatron.core.enums", "megatron.enums")
      for name in ("ModelType", "LayerType", "AttnType", "AttnMaskType", "PositionEmbeddingType")),
    "megatron.core.transformer.enums.AttnBackend",
    "megatron.fp16.loss_scaler.DynamicLossScaler",
    "fp16.loss_scaler.DynamicLossScaler",
    "signal.Signals",
    "_io.BytesIO",  # in the `_extra_state` of Transformer Engine
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    "numpy.ndarray",
    "numpy.dtype",
    *(f"numpy.dtypes.{name}DType" for name in ("UInt32", "Int64", "Float64", "Float32", "Bool")),
)  # fmt: skip
ALLOWED: tuple[tuple[type, str], ...] = (
    (argparse.Namespace, "argparse.Namespace"),
    *((PickleStub, name) for name in STUBBED),
)
BUFFERS = re.compile(r".*(attention\.(masked_)?bias|_extra_state|inv_freq)")


@dataclass(frozen=True)
class MegatronCheckpoint:
    """Opened checkpoint."""

    weights: LazyWeights
    notes: tuple[str, ...]
    """Notes for the user on what is not converted."""
    optimizer: OptimizerState | None = None
    """State of the optimizer, if there is one."""


def open_megatron(path: Path, vocab: int | None = None, heads: int | None = None) -> MegatronCheckpoint:
    """Open a checkpoint of any tensor-parallel and pipeline layout, to be read tensor by tensor.

    Args:
        path: folder with the tracker file, or with the `mp_rank_…` folders.
        vocab: vocabulary size, if the checkpoint does not record it; further rows are padding.
        heads: number of attention heads, if the checkpoint has no `args`.

    Raises:
        UserError: files are missing, contain other objects than a checkpoint, disagree, or describe another
            architecture than GPT-2.
    """
    folder = iteration_folder(path)
    grid = rank_files(folder)
    if grid:
        return _open_ranks(folder, grid, vocab, heads)
    found = backend(folder)
    if found == "torch_dist":
        return _open_dist(folder, vocab, heads)
    if found is not None:
        raise UserError(
            f"{folder} is in Megatron's distributed format {found}, which is not supported; save it once with "
            "--ckpt-format torch_dist, or let Megatron-LM convert it: --ckpt-convert-format torch_dist "
            "--ckpt-convert-save DIR"
        )
    raise UserError(f"{folder} has no mp_rank_… folder; copy the whole checkpoint again")


def _open_ranks(
    folder: Path, grid: Mapping[tuple[int, int], Path], vocab: int | None, heads: int | None
) -> MegatronCheckpoint:
    tp, pp = 1 + max(t for t, _ in grid), 1 + max(p for _, p in grid)
    states = {ranks: _read(file) for ranks, file in grid.items()}
    first = states[0, 0]
    for ranks, state in states.items():
        for key in ("iteration", "checkpoint_version"):
            found, expected = state.get(key), first.get(key)
            if found != expected:
                raise UserError(f"{grid[ranks]} is of another save: {key} {found}, but {expected} on the first rank")
    # 0 if it is missing, as in Megatron-LM; Megatron-Core has had one order only.
    model = first.get("model", first.get("model0"))
    is_core = isinstance(model, Mapping) and any(str(name).startswith("decoder.") for name in model)
    version = int(first.get("checkpoint_version") or (3 if is_core else 0))
    if version not in (0, 1, 2, 3):
        raise UserError(f"{folder} has checkpoint_version {first['checkpoint_version']}; 0, 1, 2 and 3 are supported")
    args = args_of(first)
    check_args(args, tp, pp, str(folder))
    number = 1 if "model" in first else sum(bool(re.fullmatch(r"model\d+", key)) for key in first)
    pieces = [(p, v) for v in range(number) for p in range(pp)]  # in the order of the model
    chunks = [_chunk(states, p, v, tp) for p, v in pieces]
    _check_pieces(chunks, folder)
    parts = collect_tensors(chunks, folder)
    rows, hidden = sum(len(part) for part in parts["wte.weight"]), parts["wte.weight"][0].shape[1]
    shape = shape_of(parts, rows, hidden, len(parts["wpe.weight"][0]), args, vocab, heads, folder)
    if shape.heads % tp or shape.hidden % shape.heads:
        raise UserError(f"{folder}: {shape.heads} heads fit neither {tp} ranks nor a width of {shape.hidden}")
    tensors = {name: merged(name, parts[name], shape, version) for name in parts}
    check_sizes({name: stored.size for name, stored in tensors.items()}, sizes(shape), str(folder))
    for rank, embedding in zip(chunks[-1], parts["wte.weight"], strict=True):
        if HEAD in rank and not torch.equal(rank[HEAD], embedding):
            raise UserError(f"{folder}: {HEAD} differs from {EMBEDDING}; only tied embeddings are supported")
    notes, optimizer = tuple[str, ...](), None
    try:
        masters, optimizer = open_optimizer(states, grid, pieces, chunks, shape, version)
        tensors |= masters
    except NotConvertedError as error:
        notes = (f"{NO_OPTIMIZER}: {error}",)
    return MegatronCheckpoint(LazyWeights(shape, tensors), notes, optimizer)


def _open_dist(folder: Path, vocab: int | None, heads: int | None) -> MegatronCheckpoint:
    common = read_pickle(folder / COMMON, ALLOWED, inert="megatron.")
    if not isinstance(common, dict):
        raise UserError(f"{folder / COMMON} is not that of a Megatron checkpoint; copy it again")
    tensors, stored = megatron_dist.open_tensors(folder, common)
    for name in ("wte.weight", "wpe.weight"):
        if name not in stored or len(stored[name].size) != 2:
            raise UserError(f"{folder} has no tensor {TOP[name]}; it belongs to another model or is incomplete")
    (rows, hidden), (positions, _) = stored["wte.weight"].size, stored["wpe.weight"].size
    shape = shape_of(stored, rows, hidden, positions, args_of(common), vocab, heads, folder)
    if shape.hidden % shape.heads:
        raise UserError(f"{folder}: {shape.heads} heads do not fit a width of {shape.hidden}")
    known = sizes(shape)
    found = {name: place.size for name, place in stored.items()} | {"wte.weight": known["wte.weight"]}
    check_sizes(found, known, str(folder))
    notes, optimizer = tuple[str, ...](), None
    try:
        weights, optimizer = megatron_dist.open_state(tensors, common, shape, stored, folder)
    except NotConvertedError as error:
        weights = megatron_dist.open_weights(tensors, shape, stored)
        notes = (f"{NO_OPTIMIZER}: {error}",)
    return MegatronCheckpoint(LazyWeights(shape, weights), notes, optimizer)


def _read(file: Path) -> dict[str, Any]:
    state = read_pickle(file, ALLOWED, inert="megatron.")
    if not isinstance(state, dict) or not ("model" in state or "model0" in state):
        raise UserError(f"{file} has no model; it is not a Megatron-LM checkpoint")
    return state


def _chunk(states: Mapping[tuple[int, int], dict[str, Any]], pp: int, chunk: int, tp: int) -> list[Tensors]:
    """Return the tensors of a chunk of the model by name, for each tensor-parallel rank."""
    key = "model" if "model" in states[0, 0] else f"model{chunk}"
    found = []
    for rank in range(tp):
        tree = states[rank, pp].get(key, {})
        named = flatten(tree).items() if isinstance(tree, Mapping) else ()
        tensors = {canonical(name): value for name, value in named if isinstance(value, Tensor)}
        found.append({name: tensor for name, tensor in tensors.items() if not BUFFERS.fullmatch(name)})
    return found


def _check_pieces(chunks: list[list[Tensors]], folder: Path) -> None:
    """Check that the tensor-parallel ranks have the same tensors, each of one size, and those of a GPT-2."""
    found: dict[str, tuple[int, ...]] = {}
    for ranks in chunks:
        for name, tensor in ranks[0].items():
            for rank, others in enumerate(ranks):
                if name in others and others[name].shape != tensor.shape:
                    one, other = tuple(tensor.shape), tuple(others[name].shape)
                    stated = f"{name} has the shape {one} on tensor-parallel rank 0, but {other} on rank {rank}"
                    raise UserError(f"{folder}: {stated}; copy the folder again")
            dim = split_of(name)
            size = [n * len(ranks) if at == dim else n for at, n in enumerate(tensor.shape)]
            found.setdefault(name, tuple(size))
    check_tensors(found, str(folder))
