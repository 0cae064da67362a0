"""The part of the state that this process writes, and a copy of it that training cannot touch."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class _Replica(NamedTuple):
    """Which of how many processes with the very same piece of a tensor this one is."""

    dimensions: tuple[str, ...]  # of the mesh, along which there are copies
    mine: int
    copies: int


def own_share(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out what another process holds too and writes: each of n replicas writes an n-th of the bytes.

    Without data or tensor parallelism that replicates, everything. Plain tensors (the optimizer's step counts) stay;
    torch's planner writes one of several equal ones.
    """
    share: dict[str, Tensor] = {}
    places = {name: _replica(tensor) for name, tensor in state.items()}
    totals = dict.fromkeys((place.dimensions for place in places.values()), 0)
    for name, tensor in state.items():
        totals[places[name].dimensions] += tensor.nbytes
    before = dict.fromkeys(totals, 0)
    for name, tensor in state.items():
        place = places[name]
        # The bytes in a row are cut into equal parts. All replicas have the same tensors in the same order.
        writer = before[place.dimensions] * place.copies // max(1, totals[place.dimensions])
        if min(writer, place.copies - 1) == place.mine:
            share[name] = tensor
        before[place.dimensions] += tensor.nbytes
    return share


def copied(state: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy in the CPU's memory that stands still while training goes on; DTensors stay DTensors.

    Args:
        state: on any device.
        buffers: the last copy, to be overwritten, or nothing. Pinned memory (for a GPU) takes about as long to get as
            to fill, so it is worth keeping; ordinary memory is not.
    """
    copy: dict[str, Tensor] = {}
    for name, tensor in state.items():
        pinned = tensor.device.type != "cpu"
        buffer = buffers.get(name)
        if buffer is None:
            buffer = torch.empty_like(tensor.detach(), device="cpu", pin_memory=pinned)
        _local(buffer).copy_(_local(tensor), non_blocking=pinned)
        copy[name] = buffer
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()  # the copies run behind the step that made these values
    return copy


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _replica(tensor: Tensor) -> _Replica:
    if not isinstance(tensor, DTensor):
        return _Replica((), 0, 1)
    mesh = tensor.device_mesh
    names, coordinates = mesh.mesh_dim_names or (), mesh.get_coordinate() or [0] * mesh.ndim
    mine, copies, dimensions = 0, 1, []
    for name, at, size, placement in zip(names, coordinates, mesh.shape, tensor.placements, strict=True):
        if placement.is_replicate() and size > 1:
            mine, copies = mine * size + at, copies * size
            dimensions.append(name)
    return _Replica(tuple(dimensions), mine, copies)
