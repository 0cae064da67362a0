"""Flat buffers of Megatron's distributed optimizer.

A rank lays its parameters out in a buffer in the reverse order of its modules, each from a multiple of 64 numbers on,
cut into buckets. The files have, for each buffer, float32 copies of the weights (`param`) and the moments:

    distrib_optim.pt                                 format torch: a tensor for each buffer, without the ends of buckets
    optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(…).bucket_idx_0.exp_avg     torch_dist, `dp_reshardable`

The rules have changed between releases. A layout is taken only if each `param`, rounded, is the weight itself.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.dist_tensors import DistTensors
from gpt2train.convert.megatron_args import args_of, number
from gpt2train.convert.megatron_names import CORE_ORDER, core_parameters, split_dim
from gpt2train.convert.megatron_optimizer import NotConvertedError, progress, same_value
from gpt2train.convert.megatron_parts import padded
from gpt2train.convert.optimizer_state import OptimizerState, step_tensor
from gpt2train.convert.settings import Spec
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyTensor
from gpt2train.model.shape import Shape

BUFFER_PREFIX = "optimizer.distributed."
BUFFER_KEYS = ("param", "exp_avg", "exp_avg_sq")
BUCKET = re.compile(r"optimizer\.distributed\.dp_group_idx_(\d+)\.gbuf_idx_(\d+)\.dtype_.*\.bucket_idx_(\d+)\.param")
ALIGNMENT = 64
MIN_BUCKET, MIN_BUCKET_PER_RANK = 40_000_000, 1_000_000  # numbers in a bucket, if reduction and backward overlap

Place = tuple[int, int, int]  # bucket, first number in it, number after the last one


def buffer_places(numels: Sequence[int], alignment: int, bucket: int | None, own: Sequence[int]) -> list[Place]:
    """Lay out the parameters of a buffer, in the order of the modules.

    Args:
        numels: numbers in each parameter.
        alignment: parameters begin at multiples of it.
        bucket: numbers after which a bucket ends; None for one bucket.
        own: parameters that have a bucket of their own: a tied embedding, with pipeline parallelism.
    """
    places: list[Place] = []
    at, end = 0, 0
    for number_ in reversed(range(len(numels))):
        start = -(-end // alignment) * alignment
        if number_ in own and end:
            at, start = at + 1, 0
        end = start + numels[number_]
        places.append((at, start, end))
        if number_ in own or (bucket is not None and end >= bucket):
            at, end = at + 1, 0
    return places[::-1]


def world_places(places: Sequence[Place], own: Sequence[int], alignment: int) -> tuple[list[tuple[int, int]], int]:
    """Concatenate the buckets: start and end of each parameter, and all numbers.

    A bucket that ends because the next parameter needs its own also has that one's alignment.
    """
    length: dict[int, int] = {}
    for bucket, _, end in places:
        length[bucket] = max(length.get(bucket, 0), end)
    for number_ in own:
        before = places[number_][0] - 1
        if before in length and all(places[other][0] != before for other in own):
            length[before] = -(-length[before] // alignment) * alignment
    starts = {bucket: sum(n for other, n in length.items() if other < bucket) for bucket in length}
    return [(starts[bucket] + start, starts[bucket] + end) for bucket, start, end in places], sum(length.values())


def buffer_tensors(
    flat: Mapping[str, Any], weights: Sequence[Tensor], args: Mapping[str, Any]
) -> dict[str, list[Tensor]]:
    """Cut the buffers of a file `distrib_optim.pt` into the tensors of the rank's parameters, in the modules' order.

    Raises:
        NotConvertedError: no known layout fits.
    """
    buffers = {key: flat[key] for key in BUFFER_KEYS}
    numels = [weight.numel() for weight in weights]
    ranks = number(args, "data_parallel_size") or 1
    size = number(args, "ddp_bucket_size") or max(MIN_BUCKET, MIN_BUCKET_PER_RANK * ranks)
    for alignment, bucket, own in product((ALIGNMENT, 1), (None, size), ((), (0,), (len(weights) - 1,))):
        places, total = world_places(buffer_places(numels, alignment, bucket, own), own, alignment)
        if any(len(buffer) != total for buffer in buffers.values()):
            continue
        found = {
            key: [buffer[a:b].view(weight.shape) for (a, b), weight in zip(places, weights, strict=True)]
            for key, buffer in buffers.items()
        }
        if all(map(same_value, found["param"], weights)):
            return found
    raise NotConvertedError("the buffers of the distributed optimizer have an unknown layout")


def open_buffers(
    tensors: DistTensors, common: Mapping[str, Any], shape: Shape, weights: Mapping[str, LazyTensor]
) -> tuple[dict[str, LazyTensor], OptimizerState]:
    """Open the float32 weights and the optimizer's state in format `dp_reshardable`; `weights` show the right layout.

    Raises:
        NotConvertedError: no known layout fits.
    """
    buckets: dict[tuple[int, int], list[str]] = {}  # keys without the kind, by rank and chunk of the model
    for key in tensors.sizes:
        if match := BUCKET.fullmatch(key):
            buckets.setdefault((int(match[1]), int(match[2])), []).append(key.removesuffix("param"))
    for keys in buckets.values():
        keys.sort(key=lambda key: int(key.rsplit("bucket_idx_", 1)[1].rstrip(".")))
    ranks, chunks = 1 + max((r for r, _ in buckets), default=-1), 1 + max((c for _, c in buckets), default=-1)
    if not buckets or len(buckets) != ranks * chunks:
        raise NotConvertedError("it lacks the buffers of some ranks")
    recorded = number(args_of(common), "tensor_model_parallel_size")
    degrees = [recorded] if recorded else [tp for tp in range(1, ranks + 1) if ranks % tp == 0]
    for tp, spec, alignment in product(degrees, CORE_ORDER, (ALIGNMENT, 1)):
        if ranks % tp or shape.heads % tp or shape.layers % (ranks // tp * chunks):
            continue
        places = _bucket_places(tensors, buckets, shape, (tp, ranks // tp, chunks), spec, alignment)
        if places is None or places.keys() != weights.keys():
            continue
        found = {
            kind: {name: _lazy(tensors, places[name], kind, name, shape, weights[name].size) for name in weights}
            for kind in BUFFER_KEYS
        }
        if all(_fits(found["param"][name], weight) for name, weight in weights.items()):
            return found["param"], _state(tensors, common, found)
    raise NotConvertedError("the buffers of the distributed optimizer have an unknown layout")


def _state(
    tensors: DistTensors, common: Mapping[str, Any], found: Mapping[str, Mapping[str, LazyTensor]]
) -> OptimizerState:
    saved = tensors.entry(f"{BUFFER_PREFIX}dp_group_idx_0.optimizer/shard_0_1")
    groups = saved[0] if isinstance(saved, list) and saved else None  # an object of each rank, with the step
    place = progress({**common, "optimizer": groups} if isinstance(groups, Mapping) else common)
    state = {f"{n}.{kind}": t for kind in BUFFER_KEYS[1:] for n, t in found[kind].items()}
    steps = {f"{name}.step": step_tensor(place.updates) for name in found["param"]}
    return replace(place, tensors=state | steps)


Piece = tuple[str, int, int]  # key of a bucket without the kind, first number and number after the last one


def _bucket_places(
    tensors: DistTensors,
    buckets: Mapping[tuple[int, int], Sequence[str]],
    shape: Shape,
    layout: tuple[int, int, int],
    spec: Spec,
    alignment: int,
) -> dict[str, list[Piece]] | None:
    """Map our name of each parameter to its piece on each tensor-parallel rank; None if the sizes do not fit."""
    (tp, pp, chunks), found = layout, dict[str, list[Piece]]()
    for chunk, stage, rank in product(range(chunks), range(pp), range(tp)):
        keys = buckets[stage * tp + rank, chunk]
        lengths = [tensors.sizes[f"{key}param"][0] for key in keys]
        names = [ours for ours, _ in core_parameters(shape, chunk * pp + stage, pp * chunks, spec)]
        rows = _rows(lengths, shape, tp, names, alignment)
        numels = [_numel(name, shape, tp, rows) for name in names]
        at, end = 0, 0
        for name, numel in reversed(list(zip(names, numels, strict=True))):
            start = -(-end // alignment) * alignment
            if at < len(lengths) and start >= lengths[at]:
                at, start = at + 1, 0
            end = start + numel
            if at >= len(lengths) or end > lengths[at]:
                return None
            pieces = found.setdefault(name, [])
            if len(pieces) == rank:  # the copy of the embedding on the last stage comes second
                pieces.append((keys[at], start, end))
        if at != len(lengths) - 1:
            return None
    return found


def _rows(lengths: Sequence[int], shape: Shape, tp: int, names: Sequence[str], alignment: int) -> int:
    """Rows of the token embedding on a rank, whose padding is not recorded: of Megatron's rule, or what is left."""
    default = -(-shape.vocab // (128 * tp)) * 128
    if "wte.weight" not in names:
        return default
    others = sum(-(-_numel(n, shape, tp, 0) // alignment) * alignment for n in names if n != "wte.weight")
    left = (sum(lengths) - others) // shape.hidden
    return left if -(-shape.vocab // tp) <= left <= default else default


def _numel(name: str, shape: Shape, tp: int, rows: int) -> int:
    if name == "wte.weight":
        return rows * shape.hidden
    return math.prod(sizes(shape)[name]) // (1 if split_dim(name) is None else tp)


def _lazy(
    tensors: DistTensors, pieces: Sequence[Piece], kind: str, name: str, shape: Shape, size: tuple[int, ...]
) -> LazyTensor:
    dim, local = split_dim(name), list(size)
    if dim is not None:
        local[dim] //= len(pieces)
    if name == "wte.weight":
        local[0] = -1  # with the rank's padding

    def read(dtype: torch.dtype) -> Tensor:
        parts = [
            tensors.read(f"{key}{kind}", dtype, (start, end)).view(local)
            for key, start, end in (pieces[:1] if dim is None else pieces)
        ]
        return padded(name, parts[0] if dim is None else torch.cat(parts, dim=dim), shape.padded_vocab, kind == "param")

    return LazyTensor(size, read)


def _fits(master: LazyTensor, weight: LazyTensor) -> bool:
    """Compare in the lower precision: the weights of a model in half precision are rounded copies."""
    a, b = master.read(torch.float32), weight.read(torch.float32)
    dtypes = (torch.float32, torch.bfloat16, torch.half)
    return a.shape == b.shape and any(same_value(a.to(dtype).float(), b) for dtype in dtypes)
