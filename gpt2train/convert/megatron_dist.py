"""Reading of Megatron-Core's distributed checkpoints, format `torch_dist`.

    common.pt                               args, iteration, hyperparameters of the optimizer
    metadata.json                           {"sharded_backend": "torch_dist", …}
    .metadata, __0_0.distcp, …              tensors, and objects that hold no weights (`_extra_state`, random state)

Tensors are whole, whatever the parallel layout was. Those of all layers are one tensor with the layers as its first
dimension (`decoder.layers.mlp.linear_fc2.weight`, [layers, …]), or have a name for each layer. The names are those of
Transformer Engine's layers, with local layers too; a tied output projection is not stored.

The optimizer's state lies beside the weights, as `optimizer.state.<kind>.<weight>`; or, by the distributed optimizer's
format `dp_reshardable`, as flat buffers of each rank (`gpt2train.convert.megatron_buffers`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.dist_tensors import DistTensors
from gpt2train.convert.megatron_args import args_of, check_args, check_tensors
from gpt2train.convert.megatron_buffers import BUFFER_PREFIX, open_buffers
from gpt2train.convert.megatron_names import FINAL, HEAD, TOP, canonical, layer_names
from gpt2train.convert.megatron_optimizer import NotConvertedError, progress
from gpt2train.convert.megatron_parts import padded
from gpt2train.convert.optimizer_state import OptimizerState, step_tensor
from gpt2train.errors import UserError
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyTensor
from gpt2train.model.shape import Shape
from gpt2train.training.adamw import STATE

STATE_PREFIX = "optimizer.state."
MASTERS = ("fp32_param", "param")  # float32 copies of the weights, by the kind of optimizer
STACKED = re.compile(r"encoder\.layers\.([a-z].*)")
ONE_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.*)")


@dataclass(frozen=True)
class Stored:
    """Place of one of our parameters: a whole tensor, or a row of one."""

    key: str
    row: int | None
    size: tuple[int, ...]


def parameters(tensors: DistTensors, prefix: str, where: str) -> dict[str, Stored]:
    """Map our name of each parameter to its place among the tensors whose keys begin with a prefix.

    Raises:
        UserError: a tensor is not of a GPT-2; the message names the setting.
    """
    named: dict[str, Stored] = {}
    for key, size in tensors.sizes.items():
        if not key.startswith(prefix) or (not prefix and key.startswith(("optimizer.", "rng_state"))):
            continue
        name = canonical(re.sub(r"^(module\.|model\.)+", "", key.removeprefix(prefix)))
        if "_extra_state" in name:
            continue
        if (found := STACKED.fullmatch(name)) and size:
            for layer in range(size[0]):
                named[f"encoder.layers.{layer}.{found[1]}"] = Stored(key, layer, size[1:])
        else:
            named[name] = Stored(key, None, size)
    check_tensors({name: stored.size for name, stored in named.items()}, where)
    if HEAD in named:
        raise UserError(f"{where}: untie_embeddings_and_output_weights is True; only False, as in GPT-2, is supported")
    layers = 1 + max((int(found[1]) for name in named if (found := ONE_LAYER.fullmatch(name))), default=-1)
    pairs = TOP | FINAL
    for layer in range(layers):
        pairs = pairs | layer_names(layer, layer)
    for name in sorted(named.keys() - set(pairs.values())):
        raise UserError(f"{where} has a tensor {named[name].key}, which is not part of a GPT-2; it cannot be converted")
    return {ours: named[theirs] for ours, theirs in pairs.items() if theirs in named}


def open_tensors(folder: Path, common: Mapping[str, Any]) -> tuple[DistTensors, dict[str, Stored]]:
    """Open the weights of a folder, and check that they are a GPT-2's.

    Raises:
        UserError: they are not, or a file is missing or damaged.
    """
    check_args(args_of(common), None, None, str(folder))
    tensors = DistTensors(folder)
    return tensors, parameters(tensors, "", str(folder))


def lazy(tensors: DistTensors, place: Stored, name: str, shape: Shape, is_weight: bool = True) -> LazyTensor:
    """Wrap a tensor to be read on request, with our padding of the vocabulary."""

    def read(dtype: torch.dtype) -> Tensor:
        rows = None if place.row is None else (place.row, place.row + 1)
        value = tensors.read(place.key, dtype, rows)
        return padded(name, value if rows is None else value[0], shape.padded_vocab, is_weight)

    return LazyTensor(sizes(shape)[name] if name == "wte.weight" else place.size, read)


def open_weights(tensors: DistTensors, shape: Shape, stored: Mapping[str, Stored]) -> dict[str, LazyTensor]:
    """Open the weights in the data type in which the model computes."""
    return {name: lazy(tensors, place, name, shape) for name, place in stored.items()}


def open_state(
    tensors: DistTensors, common: Mapping[str, Any], shape: Shape, stored: Mapping[str, Stored], folder: Path
) -> tuple[dict[str, LazyTensor], OptimizerState | None]:
    """Open the weights, in float32 where the optimizer has such copies, and the optimizer's state.

    Raises:
        NotConvertedError: the optimizer's state has another form than this module reads.
    """

    def all_of(kind: str) -> dict[str, Stored] | None:
        prefix = f"{STATE_PREFIX}{kind}."
        if not any(key.startswith(prefix) for key in tensors.sizes):
            return None
        found = parameters(tensors, prefix, str(folder))
        for name, place in stored.items():
            if name not in found or found[name].size != place.size:
                raise NotConvertedError(f"{prefix}… lacks {name}, or has it in flattened pieces")
        return found

    if any(key.startswith(BUFFER_PREFIX) for key in tensors.sizes):
        return open_buffers(tensors, common, shape, open_weights(tensors, shape, stored))
    masters = next((found for kind in MASTERS if (found := all_of(kind)) is not None), stored)
    weights = open_weights(tensors, shape, {name: masters[name] for name in stored})
    moments = {kind: found for kind in STATE if (found := all_of(kind)) is not None}
    if not moments:
        return weights, None
    if len(moments) < len(STATE):
        raise NotConvertedError("it has only one of exp_avg and exp_avg_sq")
    known = progress(common)
    state = {
        f"{name}.{kind}": lazy(tensors, found[name], name, shape, is_weight=False)
        for kind, found in moments.items()
        for name in stored
    }
    state |= {f"{name}.step": step_tensor(known.updates) for name in stored}
    return weights, replace(known, tensors=state)
