"""Writing of Megatron-Core's checkpoints, with the optimizer's state if there is one.

    latest_checkpointed_iteration.txt                     the iteration; `release` without an optimizer
    iter_0005000/mp_rank_01_002/model_optim_rng.pt        format torch: a file for each rank
    iter_0005000/{common.pt,.metadata,__5_0.distcp}       format torch_dist: whole tensors, in chunks of the ranks

With `release` Megatron-LM loads no optimizer and starts at iteration 0. For torch_dist one tensor is in memory at a
time, for torch the state of one rank.
"""

import contextlib
import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.dist_tensors import DistWriter
from gpt2train.convert.megatron_args import make_args
from gpt2train.convert.megatron_buffers import ALIGNMENT, buffer_places, world_places
from gpt2train.convert.megatron_folder import BACKEND_FILE, COMMON, DISTRIBUTED_OPTIMIZER, FILES, TRACKER, rank_name
from gpt2train.convert.megatron_names import core_parameters, split_dim
from gpt2train.convert.megatron_parts import check_layout, megatron_rows, padded
from gpt2train.convert.optimizer_state import OptimizerState
from gpt2train.convert.settings import CoreFormat, Spec
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights
from gpt2train.store.files import atomic_folder
from gpt2train.training.adamw import STATE

BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
# The form of the tensors in torch_dist, by which Megatron-LM builds its own before loading.
CONTENT = {
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": False,
}
# Modules with an `_extra_state`, which holds fp8 scales only; loading asks for its presence.
EXTRA = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")
EXTRA_TE = ("self_attention.core_attention",)
ADAM = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8}  # where the source does not have them: Megatron-LM's defaults


@dataclass(frozen=True)
class Target:
    """Form of the checkpoint to write.

    Attributes:
        tp: tensor-parallel degree; must divide the heads.
        pp: pipeline stages; must divide the layers.
        spec: layers whose names and optimizer are written; torch_dist has the same names for both.
        dtype: data type of the weights; the optimizer has float32 copies of those in half precision.
        distributed_optimizer: write the optimizer's state as the flat buffers of the distributed optimizer.
    """

    tp: int = 1
    pp: int = 1
    spec: Spec = "transformer_engine"
    dtype: torch.dtype = torch.float32
    distributed_optimizer: bool = False


DEFAULT_TARGET = Target()


def write_megatron_core(
    folder: Path,
    weights: LazyWeights,
    optimizer: OptimizerState | None = None,
    form: CoreFormat = "torch_dist",
    target: Target = DEFAULT_TARGET,
) -> None:
    """Write a checkpoint into a folder that does not exist or is empty, atomically.

    Raises:
        UserError: the layout does not divide the model, or the folder is not empty.
    """
    check_layout(folder, weights, target.tp, target.pp)
    iteration = optimizer.iteration if optimizer else 0
    name = f"iter_{iteration:07d}" if optimizer else "release"
    with atomic_folder(folder) as draft:
        (draft / name).mkdir()
        writer = _Writer(weights, optimizer, target)
        (writer.write_dist if form == "torch_dist" else writer.write_ranks)(draft / name)
        (draft / TRACKER).write_text(str(iteration) if optimizer else name, encoding="utf-8")


class _Writer:
    def __init__(self, weights: LazyWeights, optimizer: OptimizerState | None, target: Target) -> None:
        self._weights, self._optimizer, self._target = weights, optimizer, target
        self._shape = weights.shape
        self._rows = megatron_rows(weights.shape, target.tp)

    def write_dist(self, folder: Path) -> None:
        """Write format torch_dist."""
        target, shape = self._target, self._shape
        optimizer: dict[str, Any] = {}
        if self._optimizer is not None:
            inner: dict[str, Any] = {"param_groups": self._groups()}
            if target.spec == "local":
                inner["state"] = {"common_step": torch.tensor(float(self._optimizer.updates))}
            # For each of Megatron's optimizers what it looks for: at the top with weights in float32, under `optimizer`
            # with those in half precision and if it is distributed.
            optimizer = {**inner, "optimizer": copy.deepcopy(inner)}
            optimizer["param_state_sharding_type"] = CONTENT["distrib_optim_sharding_type"]
        torch.save(self._common("torch_dist", optimizer) | {"content_metadata": CONTENT}, folder / COMMON)
        (folder / BACKEND_FILE).write_text(json.dumps(BACKEND), encoding="utf-8")
        writer = DistWriter(folder)
        for stage in range(target.pp):
            with contextlib.ExitStack() as stack:
                names = (f"__{stage * target.tp + rank}_0.distcp" for rank in range(target.tp))
                files = [stack.enter_context((folder / name).open("wb")) for name in names]
                for ours, theirs in core_parameters(shape, stage, target.pp, "transformer_engine"):
                    if theirs != "output_layer.weight":  # tied, and not stored
                        self._write_parameter(writer, files, ours, theirs, stage)
                if stage == 0:
                    self._write_extra(writer, files[0])
        writer.close()

    def _write_parameter(self, writer: DistWriter, files: list[Any], ours: str, theirs: str, stage: int) -> None:
        """Write a parameter and its state; of a block as a row of the tensor of all layers."""
        layer = int(ours.split(".")[1]) if ours.startswith("blocks.") else None
        first = stage * (self._shape.layers // self._target.pp)
        key = theirs if layer is None else theirs.replace(f".layers.{layer - first}.", ".layers.")
        dtype, stored = self._target.dtype, self._weights.tensors[ours]
        entries: list[tuple[list[str], Tensor]] = [([key], self._whole(ours, stored, dtype))]
        if self._optimizer is not None:
            masters = [f"optimizer.state.{kind}.{key}" for kind in ("fp32_param", "param")]
            if dtype == torch.float32:
                entries[0][0].extend(masters)
            else:
                entries.append((masters, self._whole(ours, stored, torch.float32)))
            for kind in STATE:
                moment = self._optimizer.tensors[f"{ours}.{kind}"]
                entries.append(([f"optimizer.state.{kind}.{key}"], self._whole(ours, moment, torch.float32, False)))
        dim = split_dim(ours)
        for keys, value in entries:
            for rank, part in enumerate(self._split(ours, value)):
                whole, offset = list(value.shape), [0] * value.dim()
                if dim is not None:
                    offset[dim] = rank * part.shape[dim]
                if layer is not None:
                    whole, offset, part = [self._shape.layers, *whole], [layer, *offset], part[None]
                writer.tensor(files[rank], keys, whole, offset, part)

    def _write_extra(self, writer: DistWriter, file: Any) -> None:
        layers = self._shape.layers
        modules = [f"decoder.layers.{name}" for name in EXTRA + EXTRA_TE]
        keys = [f"{name}._extra_state/shard_{layer}_{layers}" for name in modules for layer in range(layers)]
        writer.entry(file, [*keys, "decoder.final_layernorm._extra_state/shard_0_1"], [None])

    def write_ranks(self, folder: Path) -> None:
        """Write format torch."""
        for stage, rank in product(range(self._target.pp), range(self._target.tp)):
            place = folder / rank_name(rank, stage, self._target.pp)
            place.mkdir()
            self._write_rank(place, rank, stage)

    def _write_rank(self, folder: Path, rank: int, stage: int) -> None:
        target, shape = self._target, self._shape
        pairs = list(core_parameters(shape, stage, target.pp, target.spec))

        def part(ours: str, stored: LazyTensor, dtype: torch.dtype, is_weight: bool = True) -> Tensor:
            parts = self._split(ours, self._whole(ours, stored, dtype, is_weight))
            return parts[rank if len(parts) > 1 else 0].clone(memory_format=torch.contiguous_format)

        model: dict[str, Any] = {n: part(o, self._weights.tensors[o], target.dtype) for o, n in pairs}
        extra = EXTRA if target.spec == "local" else EXTRA + EXTRA_TE
        for layer in range(shape.layers // target.pp):
            model |= {f"decoder.layers.{layer}.{name}._extra_state": None for name in extra}
        if stage == target.pp - 1:
            model["output_layer._extra_state"] = None
        optimizer: dict[str, Any] = {}
        if self._optimizer is not None:
            masters = [part(ours, self._weights.tensors[ours], torch.float32) for ours, _ in pairs]
            moments = {
                kind: [part(o, self._optimizer.tensors[f"{o}.{kind}"], torch.float32, False) for o, _ in pairs]
                for kind in STATE
            }
            if target.distributed_optimizer:
                optimizer = {"optimizer": {"param_groups": self._groups()}}
                torch.save(self._buffers(masters, moments, stage), folder / DISTRIBUTED_OPTIMIZER)
            else:
                optimizer = self._rank_optimizer(masters, moments)
        torch.save(self._common("torch", optimizer) | {"model": model}, folder / FILES[0])

    def _rank_optimizer(self, masters: list[Tensor], moments: Mapping[str, list[Tensor]]) -> dict[str, Any]:
        """State of torch's optimizer: matrices first, then biases and norms, each in the order of the modules."""
        assert self._optimizer is not None
        order = [[n for n, t in enumerate(masters) if (t.dim() > 1) == decayed] for decayed in (True, False)]
        state: dict[int, dict[str, Tensor]] = {}
        groups = self._groups()
        for group, numbers in zip(groups, order, strict=True):
            group["params"] = list(range(len(state), len(state) + len(numbers)))
            for number in numbers:
                entry = {kind: values[number] for kind, values in moments.items()}
                if self._target.spec == "local":
                    entry["step"] = torch.tensor(float(self._optimizer.updates))
                state[len(state)] = entry
        inner = {"state": state, "param_groups": groups}
        if self._target.dtype == torch.float32:
            return inner
        return {"optimizer": inner, "fp32_from_fp16_params": [[masters[n] for n in numbers] for numbers in order]}

    def _buffers(self, masters: list[Tensor], moments: Mapping[str, list[Tensor]], stage: int) -> dict[Any, Any]:
        """Flat buffers of one bucket, but for a tied embedding with pipeline parallelism, which has its own."""
        pp = self._target.pp
        own = () if pp == 1 else (0,) if stage == 0 else (len(masters) - 1,) if stage == pp - 1 else ()
        buckets = buffer_places([tensor.numel() for tensor in masters], ALIGNMENT, None, own)
        places, total = world_places(buckets, own, ALIGNMENT)
        buffers: dict[str, Any] = {}
        for key, tensors in ({"param": masters} | dict(moments)).items():
            buffers[key] = torch.zeros(total)
            for (start, end), tensor in zip(places, tensors, strict=True):
                buffers[key][start:end] = tensor.flatten()
        dtype = self._target.dtype
        gradients = torch.float16 if dtype == torch.float16 else torch.float32  # as Megatron-LM reduces them by default
        return {"buckets_coalesced": True, 0: {(dtype, gradients): buffers | {"numel_unpadded": total}}}

    def _common(self, form: CoreFormat, optimizer: Mapping[str, Any]) -> dict[str, Any]:
        """Content of every rank's file besides the model."""
        target, state = self._target, self._optimizer
        iteration = state.iteration if state else 0
        args = make_args(self._shape, self._rows, target.tp, target.pp, target.dtype, iteration)
        args.consumed_train_samples = state.samples if state else 0
        args.transformer_impl, args.use_mcore_models = target.spec, True
        args.ckpt_format, args.use_dist_ckpt = form, form == "torch_dist"
        args.use_distributed_optimizer = target.distributed_optimizer
        args.no_save_optim, args.no_save_rng = state is None, True
        common: dict[str, Any] = {"args": args, "checkpoint_version": 3.0, "iteration": iteration}
        if state is not None:
            common["optimizer"] = dict(optimizer)
            if state.schedule:
                common["opt_param_scheduler"] = dict(state.schedule)
        return common

    def _groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of Megatron's optimizers, without the parameters."""
        state = self._optimizer
        assert state is not None
        shared, schedule = ADAM | dict(state.group), state.schedule
        more = {
            "lr_mult": 1.0,
            "is_expert_parallel": False,
            "is_decoupled_lr": False,
            "default_config": True,
            "max_lr": schedule.get("max_lr", shared["lr"]),
            "min_lr": schedule.get("min_lr", 0.0),
            "bias_correction": True,
            "step": state.updates,
        }
        decays = ((1.0, state.weight_decay), (0.0, 0.0))
        return [shared | more | {"wd_mult": multiplier, "weight_decay": decay} for multiplier, decay in decays]

    def _whole(self, name: str, stored: LazyTensor, dtype: torch.dtype, is_weight: bool = True) -> Tensor:
        """Read a parameter, or one of its moments, with Megatron's padding of the vocabulary."""
        return padded(name, stored.read_within(name, dtype), self._rows, is_weight)

    def _split(self, name: str, value: Tensor) -> tuple[Tensor, ...]:
        dim = split_dim(name)
        return (value,) if dim is None or self._target.tp == 1 else value.chunk(self._target.tp, dim=dim)
