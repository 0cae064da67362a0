"""The global gradient norm over parameters that lie on the processes in different ways.

Parameters may be plain tensors or DTensors on one dimension of the mesh or several, differ between pipeline stages, and
live on another device than the loss. Each process takes the squares of its own shares, divided by the number of
processes that hold the same share; the sum over all processes is then the square of the norm, on every layout. A single
infinite or undefined element anywhere makes that sum not finite everywhere: all processes skip the step, or none does.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """The share of a tensor that lives here."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def canonicalise(parameters: Sequence[Tensor]) -> None:
    """Give each gradient the placements of its parameter.

    Where a replicated parameter sees a share of the tokens, autograd can leave a gradient that is still to be summed
    (`Partial`). In-place arithmetic on such a gradient is silently wrong in torch 2.11, and its local part is not the
    gradient.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if not (isinstance(parameter, DTensor) and isinstance(gradient, DTensor)):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def shares(parameter: Tensor) -> int:
    """Into how many different shares a parameter is split.

    Whatever is not a replica is a share: `is_shard()` is False for the strided shards of FSDP over tensor parallelism.
    """
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    return math.prod(mesh.size(i) for i, p in enumerate(parameter.placements) if not p.is_replicate())


def counts(parameters: Sequence[Tensor], processes: int, copies: Sequence[Tensor] = ()) -> Tensor:
    """By how much the squares of each parameter's local share count, so that each element counts once in the world.

    Args:
        parameters: those that live here.
        processes: how many hold this stage of the model together: all, divided by the pipeline's length.
        copies: parameters that another stage counts (the second copy of the tied embedding).

    Returns:
        float64 [parameters], on their device.
    """
    skipped = {id(parameter) for parameter in copies}
    each = [0.0 if id(p) in skipped else shares(p) / processes for p in parameters]
    return torch.tensor(each, dtype=torch.float64, device=local(parameters[0]).device)


def norms(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of each local gradient, float64 [gradients]."""
    if gradients[0].device.type == "cpu":
        # A CPU adds up in a few float32 lanes: over the 38,633,472 elements of GPT-2's embedding the norm was wrong by
        # 2.7e-3, and differently on each layout. Row by row it is right to 3e-9, at the same cost.
        gradients = [torch.linalg.vector_norm(g, dim=-1) if g.dim() > 1 else g for g in gradients]
    return torch.stack(torch._foreach_norm(list(gradients))).double()


def squared_norm(each: Tensor, counted: Tensor) -> Tensor:
    """This process's part of the square of the global norm, a float64 scalar.

    A copy that counts 0 still makes the result not finite when it is: 0 x inf is not a number.

    Args:
        each: `norms` of the gradients.
        counted: `counts` of their parameters.
    """
    return torch.dot(each.square(), counted)
