"""Data parallelism, ZeRO 0 to 3, hybrid sharding and CPU offload by FSDP2 (`fully_shard`).

A single process keeps plain tensors, under the same names: FSDP on one process cost 5 % of the time of the tiny preset,
and at 124M parameters a second copy of all weights (1 GB).

Gradients are summed, not averaged: the loss is already divided by the number of tokens of the whole batch, so that
the sum over processes and micro-batches is the gradient of the mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gpt2train.config import ParallelSettings
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.init import initial_value
from gpt2train.parallel.mesh import REPLICATE, SHARD
from gpt2train.parallel.norms import use_half_precision_norms


def shard(
    part: CausalLM, mesh: DeviceMesh, settings: ParallelSettings, compute_dtype: torch.dtype = torch.float32
) -> None:
    """Apply FSDP2 to every block and the root, in place.

    No effect on a single process, unless its weights are offloaded. ZeRO 1 and 2 keep the gathered parameters between
    forward and backward; ZeRO 3 gathers them twice. So does CPU offload of the weights, at every ZeRO stage: the device
    holds the root group and one block at a time. The root group holds the token embedding: with the two uses of a tied
    one in different groups the tie would be lost.

    On several processes blocks are gathered in `compute_dtype`, so that autocast makes no copies of them, which would
    live from forward to backward also where the parameters do not. Their gradients have that dtype within a micro-batch
    and are accumulated and reduced in float32. The root stays in float32: it makes the residual stream, and the loss
    adds up the gradient of the output projection over its chunks.
    """
    if mesh.size() == 1 and not settings.offloads_weights:
        return
    dp_mesh = mesh[REPLICATE, SHARD] if mesh[REPLICATE].size() > 1 else mesh[SHARD]
    # Pinned memory makes copies to and from a GPU asynchronous; it is not available without a GPU.
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if settings.offloads_weights else OffloadPolicy()
    policy = MixedPrecisionPolicy()
    if compute_dtype != torch.float32 and mesh.size() > 1:
        policy = MixedPrecisionPolicy(compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        use_half_precision_norms(part)
    reshard_blocks = settings.zero == 3 or settings.offloads_weights
    for block in part.blocks.values():
        fully_shard(block, mesh=dp_mesh, reshard_after_forward=reshard_blocks, mp_policy=policy, offload_policy=offload)
    fully_shard(part, mesh=dp_mesh, reshard_after_forward=False, offload_policy=offload)
    for module in modules(part):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo does not support a sum with a factor


def modules(part: nn.Module) -> list[FSDPModule]:
    """All FSDP modules of a model part, including its root."""
    return [module for module in part.modules() if isinstance(module, FSDPModule)]


@torch.no_grad()
def init_weights(part: CausalLM, device: torch.device, seed: int) -> None:
    """Allocate a meta model and fill it with initial values, which depend only on (seed, name), not on the layout."""
    part.to_empty(device=device)
    for name, parameter in part.named_parameters():
        copy_into_shard(parameter, initial_value(name, tuple(parameter.shape), part.shape, seed).to(device))


@torch.no_grad()
def copy_into_shard(tensor: Tensor, whole: Tensor) -> None:
    """Fill a tensor, or its local shard, from the unsharded value, which every process has; nothing is sent."""
    if isinstance(tensor, DTensor):
        local = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.to_local().copy_(local.to_local())
    else:
        tensor.copy_(whole)


def accumulate(parts: Sequence[nn.Module], zero: int, last: bool) -> None:
    """Configure gradient synchronisation for the next micro-batch.

    ZeRO 0 and 1 reduce gradients once, after the last micro-batch; ZeRO 2 and 3 after each, so that only gradient
    shards stay in memory. Resharding must be enabled for the last micro-batch: otherwise the next forward would use the
    gathered parameters from before the optimizer step, without an error.
    """
    if zero <= 1:
        for part in parts:
            if isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(last)
                part.set_reshard_after_backward(last)


def reshard(parts: Sequence[nn.Module]) -> None:
    """Free gathered parameters left by a forward without backward (validation)."""
    for part in parts:
        for module in modules(part):
            module.reshard()
