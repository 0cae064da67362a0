"""Staging of a checkpoint: the tensors that this process writes, and a CPU copy of them that training cannot change."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2train.parallel.grad_norm import local


def deduplicate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors that this process writes: of n replicas, each writes an n-th of the bytes.

    Without replicated tensors, every process writes all of its tensors. Plain tensors (the optimizer's step counts) are
    always selected; torch's planner writes one of several equal ones.
    """
    own: dict[str, Tensor] = {}
    totals, offsets = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for tensor in state.values():
        totals[_replica(tensor)[0]] += tensor.nbytes
    for name, tensor in state.items():
        dimensions, number, copies = _replica(tensor)
        # The concatenated bytes are cut into equal parts. All replicas have the same tensors in the same order.
        writer = offsets[dimensions] * copies // max(1, totals[dimensions])
        if min(writer, copies - 1) == number:
            own[name] = tensor
        offsets[dimensions] += tensor.nbytes
    return own


def copy_to_cpu(state: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to CPU memory, so that training cannot change them; DTensors stay DTensors.

    The buffers are previous copies to overwrite, possibly none. Pinned memory (for a GPU) takes about as long to
    allocate as to fill and is worth reusing; ordinary memory is not.
    """
    copy: dict[str, Tensor] = {}
    for name, tensor in state.items():
        pinned = tensor.device.type == "cuda"
        buffer = buffers.get(name)
        if buffer is None:
            buffer = torch.empty_like(tensor.detach(), device="cpu", pin_memory=pinned)
        local(buffer).detach().copy_(local(tensor).detach(), non_blocking=pinned)
        copy[name] = buffer
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()  # wait for the asynchronous copies
    return copy


def _replica(tensor: Tensor) -> tuple[tuple[str, ...], int, int]:
    """Mesh dimensions along which a tensor is replicated, the number of this process's copy, and that of all copies."""
    if not isinstance(tensor, DTensor):
        return (), 0, 1
    mesh = tensor.device_mesh
    names, coordinates = mesh.mesh_dim_names or (), mesh.get_coordinate() or [0] * mesh.ndim
    index, copies, dimensions = 0, 1, []
    for name, coordinate, size, placement in zip(names, coordinates, mesh.shape, tensor.placements, strict=True):
        if placement.is_replicate() and size > 1:
            index, copies = index * size + coordinate, copies * size
            dimensions.append(name)
    return tuple(dimensions), index, copies
