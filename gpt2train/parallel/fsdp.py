"""Data parallelism and ZeRO 0 to 3 by FSDP2 (`fully_shard`), on one process as on many.

Gradients are summed, not averaged: the loss is already divided by the number of tokens of the whole batch, so that
the sum over processes and micro-batches is the gradient of the mean.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initial_value
from gpt2train.parallel.mesh import REPLICATE, SHARD


def shard(model: GPT2, mesh: DeviceMesh, zero: int) -> None:
    """Make every parameter a DTensor on the mesh and let forward and backward communicate.

    ZeRO 1 and 2 keep the gathered parameters between forward and backward, 3 gathers them twice. The root group holds
    the embedding that is input and output layer at once: in two groups the tie would be lost.
    """
    place = mesh if mesh.size(0) > 1 else mesh[SHARD]
    for block in model.blocks.values():
        fully_shard(block, mesh=place, reshard_after_forward=zero == 3)
    fully_shard(model, mesh=place, reshard_after_forward=False)
    for module in modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def modules(model: nn.Module) -> list[FSDPModule]:
    """Every sharded part of a model, the root included."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@torch.no_grad()
def materialise(model: GPT2, device: torch.device, seed: int) -> None:
    """Give a sharded meta model its memory and its first values: each tensor from (seed, its name), on any layout."""
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        whole = initial_value(name, tuple(parameter.shape), model.shape, seed).to(device)
        sharded = cast(DTensor, parameter)
        # Every process has the whole value: no need to send it.
        part = distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)
        sharded.to_local().copy_(part.to_local())


def accumulate(model: GPT2, zero: int, last: bool) -> None:
    """Prepare for one micro-batch; `last` is the one after which the optimizer steps.

    ZeRO 0 and 1 communicate gradients once, after the last micro-batch; ZeRO 2 and 3 after each, which keeps only
    their share of the gradients in memory. Resharding must be on again for the last one: otherwise the forward would
    go on with the gathered copy from before the step, without an error.
    """
    root = cast(FSDPModule, model)
    if zero <= 1:
        root.set_requires_gradient_sync(last)
        root.set_reshard_after_backward(last)


def reshard(model: GPT2) -> None:
    """Drop gathered parameters that a forward without a backward (validation) has left."""
    for module in modules(model):
        module.reshard()


def local_gradients(model: GPT2) -> list[Tensor]:
    """The part of each gradient that lives here, in the order of the parameters."""
    return [cast(DTensor, p.grad).to_local() for p in model.parameters() if p.grad is not None]


def replicas(mesh: DeviceMesh) -> int:
    """How many processes hold the same share."""
    return mesh[REPLICATE].size()
