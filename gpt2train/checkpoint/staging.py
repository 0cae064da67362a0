"""Staging of a checkpoint: the tensors that this process writes, and a CPU copy of them that training cannot change."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2train.parallel.grad_norm import local


class _Replica(NamedTuple):
    """Position of this process among the processes that hold the same shard of a tensor."""

    dimensions: tuple[str, ...]  # mesh dimensions along which the tensor is replicated
    number: int
    copies: int


def deduplicate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors that this process writes: of n replicas, each writes an n-th of the bytes.

    Without replicated tensors, every process writes all of its tensors. Plain tensors (the optimizer's step counts) are
    always selected; torch's planner writes one of several equal ones.
    """
    own: dict[str, Tensor] = {}
    replicas = {name: _replica(tensor) for name, tensor in state.items()}
    totals = dict.fromkeys((replica.dimensions for replica in replicas.values()), 0)
    for name, tensor in state.items():
        totals[replicas[name].dimensions] += tensor.nbytes
    offsets = dict.fromkeys(totals, 0)
    for name, tensor in state.items():
        replica = replicas[name]
        # The concatenated bytes are cut into equal parts. All replicas have the same tensors in the same order.
        writer = offsets[replica.dimensions] * replica.copies // max(1, totals[replica.dimensions])
        if min(writer, replica.copies - 1) == replica.number:
            own[name] = tensor
        offsets[replica.dimensions] += tensor.nbytes
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


def _replica(tensor: Tensor) -> _Replica:
    if not isinstance(tensor, DTensor):
        return _Replica((), 0, 1)
    mesh = tensor.device_mesh
    names, coordinates = mesh.mesh_dim_names or (), mesh.get_coordinate() or [0] * mesh.ndim
    index, copies, dimensions = 0, 1, []
    for name, coordinate, size, placement in zip(names, coordinates, mesh.shape, tensor.placements, strict=True):
        if placement.is_replicate() and size > 1:
            index, copies = index * size + coordinate, copies * size
            dimensions.append(name)
    return _Replica(tuple(dimensions), index, copies)
