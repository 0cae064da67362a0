"""Global gradient norm over parameters with different placements.

Parameters may be plain tensors or DTensors on one or several mesh dimensions, differ between pipeline stages, and be on
another device than the loss. Each process squares its local shards and divides by the number of processes with the
same shard; the sum over all processes is the squared norm, on every layout. A single infinite or NaN element anywhere
makes that sum not finite everywhere, so that either all processes skip the step or none does.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2train.compat.torch import tensor_norms
from gpt2train.model.device import sum_dtype


def local(tensor: Tensor) -> Tensor:
    """Local shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def align_grad_placements(parameters: Sequence[Tensor]) -> None:
    """Give each gradient the placements of its parameter.

    If a replicated parameter processes a slice of the tokens, autograd can leave a gradient that is not yet summed
    (`Partial`). In-place arithmetic on such a gradient is silently wrong in torch 2.11, and its local part is not the
    gradient.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if not (isinstance(parameter, DTensor) and isinstance(gradient, DTensor)):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def shard_count(parameter: Tensor) -> int:
    """Number of different shards of a parameter.

    Every placement that does not replicate counts as a shard, since `is_shard()` is False for the strided shards of
    FSDP over tensor parallelism.
    """
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    return math.prod(mesh.size(i) for i, p in enumerate(parameter.placements) if not p.is_replicate())


def norm_weights(parameters: Sequence[Tensor], processes: int, copies: Sequence[Tensor] = ()) -> Tensor:
    """Weights of the squared local shards, such that each element counts once over all processes.

    Copies are parameters that another stage counts. `processes` are those of a pipeline stage: world size / pp.

    Returns:
        [parameters], on their device, in its `sum_dtype`.
    """
    skipped = {id(parameter) for parameter in copies}
    weights = [0.0 if id(p) in skipped else shard_count(p) / processes for p in parameters]
    device = local(parameters[0]).device
    return torch.tensor(weights, dtype=sum_dtype(device), device=device)


def norms(gradients: Sequence[Tensor]) -> Tensor:
    """Norm of each local gradient, [gradients] in `sum_dtype`."""
    device = gradients[0].device
    if device.type in ("cpu", "mps"):
        # A CPU sums in a few float32 accumulators: over the 38,633,472 elements of GPT-2's embedding the norm was wrong
        # by 2.7e-3, and differently on each layout. Row by row it is right to 3e-9, at the same cost.
        gradients = [torch.linalg.vector_norm(g, dim=-1) if g.dim() > 1 else g for g in gradients]
    return tensor_norms(gradients).to(sum_dtype(device))


def squared_norm(local_norms: Tensor, weights: Tensor) -> Tensor:
    """Contribution of this process to the squared global norm, a scalar.

    A copy with weight 0 that is not finite still makes the result not finite, since 0 x inf is NaN.
    """
    return torch.dot(local_norms.square(), weights)
