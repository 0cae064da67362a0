"""Checkpoints of Megatron-LM, read.

    latest_checkpointed_iteration.txt                     a number, or `release`
    iter_0005000/mp_rank_01_002/model_optim_rng.pt        tensor-parallel rank 1, pipeline stage 2
    release/mp_rank_00/model_optim_rng.pt                 no pipeline

Each file is a pickle with `args`, `checkpoint_version`, `iteration` and `model`, or `model0`, `model1` … where a stage
has several pieces of an interleaved pipeline. Optimizer and random state are left out. Files are mapped into memory, so
that what is not asked for is not read.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.checkpoint.megatron_args import check_args, number
from gpt2train.checkpoint.megatron_names import (
    EMBEDDING,
    FINAL,
    HEAD,
    TOP,
    canonical,
    cut_along,
    layer_names,
    rows_from,
)
from gpt2train.checkpoint.pickles import Inert, read_pickle
from gpt2train.checkpoint.weights import Stored, Weights, check_sizes, pad_vocabulary, sizes
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

TRACKER = "latest_checkpointed_iteration.txt"
FILES = ("model_optim_rng.pt", "model_rng.pt")  # the second where the optimizer lay apart
RANK = re.compile(r"mp_rank_(\d\d)(?:_(\d\d\d))?")
# What a checkpoint names beside tensors, all of it next to the weights and not needed. Built as `Inert`.
BESIDE = (
    *(f"{place}.{name}" for place in ("megatron.model.enums", "megatron.core.enums", "megatron.enums")
      for name in ("ModelType", "LayerType", "AttnType", "AttnMaskType", "PositionEmbeddingType")),
    "megatron.core.transformer.enums.AttnBackend",
    "megatron.fp16.loss_scaler.DynamicLossScaler",
    "fp16.loss_scaler.DynamicLossScaler",
    "signal.Signals",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    "numpy.ndarray",
    "numpy.dtype",
    *(f"numpy.dtypes.{name}DType" for name in ("UInt32", "Int64", "Float64", "Float32", "Bool")),
)  # fmt: skip
ALLOWED: tuple[tuple[type, str], ...] = (
    (argparse.Namespace, "argparse.Namespace"),
    *((Inert, name) for name in BESIDE),
)
BUFFERS = re.compile(r".*(attention\.(masked_)?bias|_extra_state|inv_freq)")

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class MegatronCheckpoint:
    """A checkpoint, opened."""

    weights: Weights
    folder: Path
    version: int
    """0 to 3, which decides the row order of the fused projection."""
    tp: int
    pp: int
    """Pipeline stages; each may have several pieces of the model."""
    notes: tuple[str, ...]
    """What a person should know: what was left out."""


def is_megatron(path: Path) -> bool:
    """Whether a folder looks like one of Megatron-LM's, or a step in it."""
    return path.is_dir() and ((path / TRACKER).is_file() or any(RANK.fullmatch(p.name) for p in path.iterdir()))


def open_megatron(path: Path, vocab: int | None = None, heads: int | None = None) -> MegatronCheckpoint:
    """Open a checkpoint of any tensor-parallel and pipeline layout, to be read tensor by tensor.

    Args:
        path: the folder with the tracker file, or the one with the `mp_rank_…`.
        vocab: tokens of the tokenizer; the rows above are padding. Needed where the checkpoint does not say.
        heads: attention heads, where the checkpoint has no `args`.

    Raises:
        UserError: files are missing, hold more than a checkpoint does, disagree, or are of a model that is no GPT-2.
    """
    folder = _step(path)
    grid = _ranks(folder)
    tp, pp = 1 + max(t for t, _ in grid), 1 + max(p for _, p in grid)
    if missing := [_name(t, p, pp) for t in range(tp) for p in range(pp) if (t, p) not in grid]:
        raise UserError(f"{folder} has no {missing[0]}, one of {tp} x {pp} ranks; copy the whole folder")
    states = {place: _read(file) for place, file in grid.items()}
    first = states[0, 0]
    for place, state in states.items():
        for key in ("iteration", "checkpoint_version"):
            if state.get(key) != first.get(key):
                raise UserError(
                    f"{grid[place]} is of another save: {key} {state.get(key)}, but {first.get(key)} on the first rank"
                )
    version = int(first.get("checkpoint_version") or 0)  # Megatron's own reading of one that does not say
    if version not in (0, 1, 2, 3):
        raise UserError(f"{folder} has checkpoint_version {first['checkpoint_version']}; 0, 1, 2 and 3 can be read")
    args = first.get("args")
    args = vars(args) if isinstance(args, argparse.Namespace) else {}
    check_args(args, tp, pp, str(folder))
    pieces = [_piece(states, p, v, tp) for v in range(_pieces(first)) for p in range(pp)]
    parts = _parts(pieces, folder)
    shape = _shape(parts, args, vocab, heads, folder)
    if any(shape.heads % tp for _ in pieces) or shape.hidden % shape.heads:
        raise UserError(f"{folder}: {shape.heads} heads fit neither {tp} ranks nor a width of {shape.hidden}")
    tensors = {name: _stored(name, parts[name], shape, version) for name in parts}
    _check(tensors, shape, folder)
    _check_tie(pieces, parts["wte.weight"], folder)
    return MegatronCheckpoint(Weights(shape, tensors), folder, version, tp, pp, tuple(_notes(first, folder, args)))


def _step(path: Path) -> Path:
    """The folder of the ranks."""
    tracker = path / TRACKER
    if tracker.is_file():
        text = tracker.read_text(encoding="utf-8", errors="replace").strip()
        if text != "release" and not text.isdecimal():
            raise UserError(f"{tracker} holds {text[:40]!r}; expected a number or release")
        folder = path / (text if text == "release" else f"iter_{int(text):07d}")
        if not folder.is_dir():
            raise UserError(f"{tracker} names {folder.name}, which is not there; copy it, or name another folder")
        return folder
    if is_megatron(path):
        return path
    raise UserError(f"{path} is no Megatron-LM checkpoint: it has neither {TRACKER} nor mp_rank_… folders")


def _ranks(folder: Path) -> dict[tuple[int, int], Path]:
    """(tensor-parallel rank, stage) -> its file."""
    found = {}
    for entry in sorted(folder.iterdir()):
        if match := RANK.fullmatch(entry.name):
            file = next((entry / name for name in FILES if (entry / name).is_file()), entry / FILES[0])
            found[int(match[1]), int(match[2] or 0)] = file
    return found


def _name(tp: int, pp: int, stages: int) -> str:
    return f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if stages > 1 else "")


def _read(file: Path) -> dict[str, Any]:
    state = read_pickle(file, ALLOWED)
    if not isinstance(state, dict) or not ("model" in state or "model0" in state):
        raise UserError(f"{file} holds no model; it is no Megatron-LM checkpoint")
    return state


def _pieces(state: Mapping[str, Any]) -> int:
    return 1 if "model" in state else sum(bool(re.fullmatch(r"model\d+", key)) for key in state)


def _piece(states: Mapping[tuple[int, int], dict[str, Any]], pp: int, piece: int, tp: int) -> list[Tensors]:
    """The tensors of a piece of the model by name, for each tensor-parallel rank."""
    key = "model" if "model" in states[0, 0] else f"model{piece}"
    found = []
    for rank in range(tp):
        flat = {canonical(name): tensor for name, tensor in _flat(states[rank, pp].get(key, {}))}
        found.append({name: tensor for name, tensor in flat.items() if not BUFFERS.fullmatch(name)})
    return found


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, Tensor):
        yield prefix, tree


def _parts(pieces: list[list[Tensors]], folder: Path) -> dict[str, list[Tensor]]:
    """Our name -> its tensor on each tensor-parallel rank; layers counted through all pieces.

    The pieces stand in the order of the model, also those of an interleaved pipeline.
    """
    parts: dict[str, list[Tensor]] = {}
    layers = 0
    for ranks in pieces:
        here = {int(found[1]) for name in ranks[0] if (found := re.match(r"encoder\.layers\.(\d+)\.", name))}
        pairs = TOP | FINAL
        for local in sorted(here):
            pairs = pairs | layer_names(layers + local, local)
        known = {*pairs.values(), HEAD}
        for name in sorted(ranks[0].keys() - known):
            raise UserError(f"{folder} has a tensor {name}, which a plain GPT-2 has not; it cannot be converted")
        for ours, theirs in pairs.items():
            if theirs in ranks[0]:
                if not all(theirs in rank for rank in ranks):
                    raise UserError(f"{folder}: {theirs} is missing on a tensor-parallel rank; copy the whole folder")
                parts[ours] = [rank[theirs] for rank in ranks]
        layers += len(here)
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
        raise UserError(f"{folder} does not say how many attention heads it has; give --heads N")
    vocab = vocab or number(args, "vocab_size")
    if vocab is None:
        raise UserError(
            f"{folder} has {rows:,} rows of embedding, padding included, and does not say how many are tokens; "
            "give --tokenizer DIR or --vocab N"
        )
    if vocab > rows:
        raise UserError(f"{folder} has {rows:,} rows of embedding, fewer than the vocabulary of {vocab:,}")
    layers = 1 + max((int(name.split(".")[1]) for name in parts if name.startswith("blocks.")), default=-1)
    return Shape(vocab, layers, heads, hidden, len(parts["wpe.weight"][0]))


def _stored(name: str, parts: list[Tensor], shape: Shape, version: int) -> Stored:
    along = cut_along(name)
    size = list(parts[0].shape)
    if along is not None:
        size[along] = sum(part.shape[along] for part in parts)
    if name == "wte.weight":
        size[0] = shape.padded_vocab

    def read(dtype: torch.dtype) -> Tensor:
        if name == "wte.weight":
            # Megatron pads more the more ranks there are. What we have fewer of is padding in both.
            rows = torch.cat([part.to(dtype) for part in parts])[: shape.padded_vocab]
            return pad_vocabulary(rows, shape.padded_vocab)
        if along is None:
            return parts[0].to(dtype)
        heads = shape.heads // len(parts)
        cut = (rows_from(version, part, heads) if ".qkv." in name else part for part in parts)
        return torch.cat([part.to(dtype) for part in cut], dim=along)

    return Stored(tuple(size), read)


def _check(tensors: Mapping[str, Stored], shape: Shape, folder: Path) -> None:
    check_sizes({name: stored.size for name, stored in tensors.items()}, sizes(shape), str(folder))


def _check_tie(pieces: list[list[Tensors]], embedding: list[Tensor], folder: Path) -> None:
    """The last stage's copy of the embedding must be one."""
    for rank, mine in zip(pieces[-1], embedding, strict=True):
        if HEAD in rank and not torch.equal(rank[HEAD], mine):
            raise UserError(f"{folder}: {HEAD} differs from {EMBEDDING}; only a tied GPT-2 can be converted")


def _notes(state: Mapping[str, Any], folder: Path, args: Mapping[str, Any]) -> Iterator[str]:
    if "optimizer" in state or any(folder.glob("mp_rank_*/*optim.pt")):
        yield "the optimizer's state, the schedule and the random state are left out"
    if args.get("bias_gelu_fusion") is False and not args.get("openai_gelu"):
        yield "it was trained with the exact GELU; here it is the tanh approximation, which differs by up to 0.001"
