"""Reading of Megatron-LM checkpoints.

    latest_checkpointed_iteration.txt                     a number, or `release`
    iter_0005000/mp_rank_01_002/model_optim_rng.pt        tensor-parallel rank 1, pipeline stage 2
    iter_0005000/{.metadata,common.pt,__0_0.distcp}       format torch_dist: not read
    release/mp_rank_00/model_optim_rng.pt                 no pipeline

Each file is a pickle with `args`, `checkpoint_version`, `iteration` and `model`, or `model0`, `model1` … if a stage has
several chunks of an interleaved pipeline. Optimizer and random state are skipped. Files are memory-mapped, so that only
the requested tensors are read.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.megatron_args import check_args, number
from gpt2train.convert.megatron_names import (
    EMBEDDING,
    FINAL,
    HEAD,
    TOP,
    canonical,
    layer_names,
    rows_from,
    split_dim,
)
from gpt2train.convert.safe_pickle import PickleStub, read_pickle
from gpt2train.errors import UserError
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights, check_sizes, pad_vocabulary
from gpt2train.model.shape import Shape
from gpt2train.settings import flatten

TRACKER = "latest_checkpointed_iteration.txt"
FILES = ("model_optim_rng.pt", "model_rng.pt")  # the second if the optimizer is in a file of its own
RANK = re.compile(r"mp_rank_(\d\d)(?:_(\d\d\d))?")
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

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class MegatronCheckpoint:
    """Opened checkpoint."""

    weights: LazyWeights
    folder: Path
    version: int
    """Checkpoint version, 0 to 3; defines the row order of the fused projection."""
    tp: int
    pp: int
    """Pipeline stages; each may have several chunks of the model."""
    notes: tuple[str, ...]
    """Notes for the user on what is not converted."""


def is_megatron(path: Path) -> bool:
    """Return True if the folder looks like a Megatron-LM checkpoint folder or one iteration in it."""
    if not path.is_dir():
        return False
    return (path / TRACKER).is_file() or any(RANK.fullmatch(p.name) for p in path.iterdir()) or bool(_distributed(path))


def _distributed(folder: Path) -> str | None:
    """Return the format of a distributed checkpoint of Megatron-Core; None for any other folder."""
    try:
        backend = json.loads((folder / "metadata.json").read_bytes())["sharded_backend"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        backend = "torch_dist" if (folder / "common.pt").is_file() and (folder / ".metadata").is_file() else None
    return None if backend is None else str(backend)[:40]


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
    folder = _iteration_folder(path)
    grid = _rank_files(folder)
    if not grid and (backend := _distributed(folder)):
        raise UserError(
            f"{folder} is in Megatron's distributed format {backend}, which is not supported; save it once with "
            "--ckpt-format torch, or let Megatron-LM convert it: --ckpt-convert-format torch --ckpt-convert-save DIR"
        )
    if not grid:
        raise UserError(f"{folder} has no mp_rank_… folder; copy the whole checkpoint again")
    tp, pp = 1 + max(t for t, _ in grid), 1 + max(p for _, p in grid)
    if missing := [_name(t, p, pp) for t in range(tp) for p in range(pp) if (t, p) not in grid]:
        raise UserError(f"{folder} has no {missing[0]}, one of {tp} x {pp} ranks; copy the whole folder")
    states = {ranks: _read(file) for ranks, file in grid.items()}
    first = states[0, 0]
    for ranks, state in states.items():
        for key in ("iteration", "checkpoint_version"):
            if state.get(key) != first.get(key):
                raise UserError(
                    f"{grid[ranks]} is of another save: {key} {state.get(key)}, but {first.get(key)} on the first rank"
                )
    version = int(first.get("checkpoint_version") or 0)  # 0 if it is missing, as in Megatron
    if version not in (0, 1, 2, 3):
        raise UserError(f"{folder} has checkpoint_version {first['checkpoint_version']}; 0, 1, 2 and 3 are supported")
    args = first.get("args")
    args = vars(args) if isinstance(args, argparse.Namespace) else {}
    check_args(args, tp, pp, str(folder))
    chunks = [_chunk(states, p, v, tp) for v in range(_num_chunks(first)) for p in range(pp)]
    parts = _collect_tensors(chunks, folder)
    shape = _shape(parts, args, vocab, heads, folder)
    if any(shape.heads % tp for _ in chunks) or shape.hidden % shape.heads:
        raise UserError(f"{folder}: {shape.heads} heads fit neither {tp} ranks nor a width of {shape.hidden}")
    tensors = {name: _merged(name, parts[name], shape, version) for name in parts}
    _check(tensors, shape, folder)
    _check_tie(chunks, parts["wte.weight"], folder)
    return MegatronCheckpoint(LazyWeights(shape, tensors), folder, version, tp, pp, tuple(_notes(first, folder, args)))


def _iteration_folder(path: Path) -> Path:
    """Return the folder of one iteration, which has the `mp_rank_…` folders."""
    tracker = path / TRACKER
    if tracker.is_file():
        text = tracker.read_text(encoding="utf-8", errors="replace").strip()
        if text != "release" and not text.isdecimal():
            raise UserError(f"{tracker} contains {text[:40]!r}; expected a number or release")
        folder = path / (text if text == "release" else f"iter_{int(text):07d}")
        if not folder.is_dir():
            raise UserError(f"{tracker} names {folder.name}, which does not exist; copy it, or give another folder")
        return folder
    if is_megatron(path):
        return path
    raise UserError(f"{path} is not a Megatron-LM checkpoint: it has neither {TRACKER} nor mp_rank_… folders")


def _rank_files(folder: Path) -> dict[tuple[int, int], Path]:
    """Map (tensor-parallel rank, stage) to its file."""
    found = {}
    for entry in sorted(folder.iterdir()):
        if match := RANK.fullmatch(entry.name):
            file = next((entry / name for name in FILES if (entry / name).is_file()), entry / FILES[0])
            found[int(match[1]), int(match[2] or 0)] = file
    return found


def _name(tp: int, pp: int, stages: int) -> str:
    return f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if stages > 1 else "")


def _read(file: Path) -> dict[str, Any]:
    state = read_pickle(file, ALLOWED, inert="megatron.")
    if not isinstance(state, dict) or not ("model" in state or "model0" in state):
        raise UserError(f"{file} has no model; it is not a Megatron-LM checkpoint")
    return state


def _num_chunks(state: Mapping[str, Any]) -> int:
    return 1 if "model" in state else sum(bool(re.fullmatch(r"model\d+", key)) for key in state)


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


def _collect_tensors(chunks: list[list[Tensors]], folder: Path) -> dict[str, list[Tensor]]:
    """Map our name of every parameter to its tensor on each tensor-parallel rank; layers are numbered over all chunks.

    Args:
        chunks: chunks in the order of the model, also for an interleaved pipeline.
        folder: folder of the checkpoint, for error messages.
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


def _shape(
    parts: Mapping[str, list[Tensor]], args: Mapping[str, Any], vocab: int | None, heads: int | None, folder: Path
) -> Shape:
    rows, hidden = sum(len(part) for part in parts["wte.weight"]), parts["wte.weight"][0].shape[1]
    heads = number(args, "num_attention_heads") or heads
    if heads is None:
        raise UserError(f"{folder} does not record its number of attention heads; give --heads N")
    vocab = vocab or number(args, "vocab_size")
    if vocab is None:
        raise UserError(
            f"{folder} has {rows:,} embedding rows with padding and does not record the vocabulary size; "
            "give --tokenizer DIR or --vocab N"
        )
    if vocab > rows:
        raise UserError(f"{folder} has {rows:,} embedding rows, fewer than the vocabulary of {vocab:,}")
    layers = 1 + max((int(name.split(".")[1]) for name in parts if name.startswith("blocks.")), default=-1)
    return Shape(vocab, layers, heads, hidden, len(parts["wpe.weight"][0]))


def _merged(name: str, parts: list[Tensor], shape: Shape, version: int) -> LazyTensor:
    dim = split_dim(name)
    size = list(parts[0].shape)
    if dim is not None:
        size[dim] = sum(part.shape[dim] for part in parts)
    if name == "wte.weight":
        size[0] = shape.padded_vocab

    def read(dtype: torch.dtype) -> Tensor:
        if name == "wte.weight":
            # Megatron's padding grows with the number of ranks; rows beyond our padding are padding in both.
            rows = torch.cat([part.to(dtype) for part in parts])[: shape.padded_vocab]
            return pad_vocabulary(rows, shape.padded_vocab)
        if dim is None:
            return parts[0].to(dtype)
        heads = shape.heads // len(parts)
        shards = (rows_from(version, part, heads) if ".qkv." in name else part for part in parts)
        return torch.cat([part.to(dtype) for part in shards], dim=dim)

    return LazyTensor(tuple(size), read)


def _check(tensors: Mapping[str, LazyTensor], shape: Shape, folder: Path) -> None:
    check_sizes({name: stored.size for name, stored in tensors.items()}, sizes(shape), str(folder))


def _check_tie(chunks: list[list[Tensors]], embedding: list[Tensor], folder: Path) -> None:
    """Check that the last stage's output embedding equals the token embedding."""
    for rank, expected in zip(chunks[-1], embedding, strict=True):
        if HEAD in rank and not torch.equal(rank[HEAD], expected):
            raise UserError(f"{folder}: {HEAD} differs from {EMBEDDING}; only tied embeddings are supported")


def _notes(state: Mapping[str, Any], folder: Path, args: Mapping[str, Any]) -> Iterator[str]:
    if "optimizer" in state or any(folder.glob("mp_rank_*/*optim.pt")):
        yield "the optimizer's state, the schedule and the random state are not converted"
    if args.get("bias_gelu_fusion") is False and not args.get("openai_gelu"):
        yield "trained with the exact GELU; gpt2train uses the tanh approximation, which differs by up to 0.001"
