"""The process group and the device mesh: who computes with whom.

One mesh `(pp, dp_replicate, dp_shard, tp)` serves every layout, the single process included, where all sizes are 1.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gpt2train.cluster import Seat, find_seat
from gpt2train.errors import RunError, UserError
from gpt2train.parallel import meeting
from gpt2train.parallel.layout import Layout

T = TypeVar("T")

PIPELINE, REPLICATE, SHARD, TENSOR = "pp", "dp_replicate", "dp_shard", "tp"  # dimensions of the mesh
# A rank that hangs is noticed after this long. torch's own 10 and 30 minutes are too patient for a lost machine; a rank
# that hashes a checkpoint of 22 GB (1542m) on a slow disk, or compiles, keeps the others waiting for 2.
TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True)
class Place:
    """Where this process stands among all."""

    rank: int
    world: int
    device: torch.device
    timeout: timedelta = TIMEOUT
    """How long it waits for the others."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0


def join(device: str, seat: Seat | None = None, timeout: timedelta = TIMEOUT) -> Place:
    """Join the process group of a job, or make one of a single process.

    gloo carries what lies in the CPU's memory, NCCL what lies on GPUs.

    Args:
        device: "cpu", "cuda", or "auto" for a GPU where every local process can have its own.
        seat: this process's number; from the environment where it is not given.
        timeout: how long to wait for the others, now and in every collective.

    Raises:
        UserError: "cuda" was asked for, and there are not enough GPUs; the environment contradicts itself.
        RunError: the others did not come.
    """
    seat = seat or find_seat(os.environ)
    gpus = torch.cuda.device_count()
    enough = gpus >= (1 if seat.own_gpu else seat.locals)
    if device == "cuda" and not enough:
        raise UserError(f"device cuda was asked for, but {seat.locals} processes here have {gpus} GPUs; use device cpu")
    on_gpu = enough and gpus > 0 and device != "cpu"
    place = torch.device("cuda", 0 if seat.own_gpu else seat.local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    store = meeting.enter(seat, timeout) if seat.world > 1 else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=seat.rank, world_size=seat.world, timeout=timeout)
    return Place(seat.rank, seat.world, place, timeout)


def make_mesh(place: Place, layout: Layout) -> DeviceMesh:
    """The mesh of a layout, over all processes.

    Its groups are made here: torch would give them its own patience, half an hour on gloo.
    """
    names = (PIPELINE, REPLICATE, SHARD, TENSOR)
    ranks = torch.arange(place.world).view(layout.pp, layout.replicate, layout.shard, layout.tp)
    groups = []
    for dimension, size in enumerate(ranks.shape):
        rows = ranks.movedim(dimension, -1).reshape(-1, size).tolist()
        groups.append(dist.new_subgroups_by_enumeration(rows, timeout=place.timeout, group_desc=names[dimension])[0])
    return DeviceMesh.from_group(groups, place.device.type, ranks, mesh_dim_names=names)


def together(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run `work` on every process; when one fails, all raise its error, so that none waits for it in vain.

    Args:
        work: what to do.
        group: over which to tell each other; None takes that of all processes.

    Raises:
        UserError, RunError: of the first process that failed.
    """
    result: T | None = None
    failure: tuple[bool, str] | None = None
    try:
        result = work()
    except (UserError, RunError) as error:
        failure = (isinstance(error, UserError), str(error))
    failures: list[tuple[bool, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure, group=group)
    for found in failures:
        if found is not None:
            raise (UserError if found[0] else RunError)(found[1])
    return cast(T, result)


def from_first(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run `work` on the first process and give its result, or its error, to all."""
    box = [together(lambda: work() if dist.get_rank() == 0 else None, group)]
    dist.broadcast_object_list(box, src=0, group=group)
    return cast(T, box[0])


def anyone(asked: bool) -> bool:
    """Whether any process says yes; all of them call it together."""
    said = torch.tensor(float(asked))  # on the CPU: gloo carries it, and no GPU is waited for
    dist.all_reduce(said)
    return bool(said.item() > 0)
