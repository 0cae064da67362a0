"""Data parallelism, ZeRO 0 to 3, hybrid and CPU offload by FSDP2 (`fully_shard`).

A process that is alone keeps plain tensors, under the same names: gathering from itself cost 5 % of the time of the
tiny preset, and at 124M parameters a second copy of all weights (1 GB).

Gradients are summed, not averaged: the loss is already divided by the number of tokens of the whole batch, so that
the sum over processes and micro-batches is the gradient of the mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gpt2train.config import ParallelSettings
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initial_value
from gpt2train.parallel.mesh import REPLICATE, SHARD


def shard(part: GPT2, mesh: DeviceMesh, settings: ParallelSettings) -> None:
    """Make every parameter a DTensor on the mesh and let forward and backward communicate; nothing for one process.

    ZeRO 1 and 2 keep the gathered parameters between forward and backward, 3 gathers them twice. The root group holds
    the embedding that is input and output layer at once: in two groups the tie would be lost.
    """
    if mesh.size() == 1 and not settings.offload:
        return
    place = mesh[REPLICATE, SHARD] if mesh[REPLICATE].size() > 1 else mesh[SHARD]
    # Pinned memory makes the copies to and from a GPU asynchronous; without a GPU there is none to be had.
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if settings.offload else OffloadPolicy()
    for block in part.blocks.values():
        fully_shard(block, mesh=place, reshard_after_forward=settings.zero == 3, offload_policy=offload)
    fully_shard(part, mesh=place, reshard_after_forward=False, offload_policy=offload)
    for module in modules(part):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def modules(part: nn.Module) -> list[FSDPModule]:
    """Every sharded module of a part, its root included."""
    return [module for module in part.modules() if isinstance(module, FSDPModule)]


@torch.no_grad()
def materialise(part: GPT2, device: torch.device, seed: int) -> None:
    """Give a meta model its memory and its first values: each tensor from (seed, its name), on any layout."""
    part.to_empty(device=device)
    for name, parameter in part.named_parameters():
        put(parameter, initial_value(name, tuple(parameter.shape), part.shape, seed).to(device))


@torch.no_grad()
def put(tensor: Tensor, whole: Tensor) -> None:
    """Fill a tensor, or this process's share of one, from the whole value, which every process has: nothing is sent."""
    if isinstance(tensor, DTensor):
        local = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.to_local().copy_(local.to_local())
    else:
        tensor.copy_(whole)


def accumulate(parts: Sequence[nn.Module], zero: int, last: bool) -> None:
    """Prepare for one micro-batch; `last` is the one after which the optimizer steps.

    ZeRO 0 and 1 communicate gradients once, after the last micro-batch; ZeRO 2 and 3 after each, which keeps only
    their share of the gradients in memory. Resharding must be on again for the last one: otherwise the forward would
    go on with the gathered copy from before the step, without an error.
    """
    if zero <= 1:
        for part in parts:
            if isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(last)
                part.set_reshard_after_backward(last)


def reshard(parts: Sequence[nn.Module]) -> None:
    """Drop gathered parameters that a forward without a backward (validation) has left."""
    for part in parts:
        for module in modules(part):
            module.reshard()
