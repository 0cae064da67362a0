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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gpt2train.errors import RunError, UserError
from gpt2train.parallel.layout import Layout

T = TypeVar("T")

PIPELINE, REPLICATE, SHARD, TENSOR = "pp", "dp_replicate", "dp_shard", "tp"  # dimensions of the mesh
# A rank that hangs is noticed after this long; torch's own 10 and 30 minutes are too patient for a lost machine.
TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True)
class Place:
    """Where this process stands among all."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0


def join(device: str) -> Place:
    """Join the process group that torchrun described, or make one of a single process.

    Args:
        device: "cpu", "cuda", or "auto" for a GPU where every local process can have its own.

    Raises:
        UserError: "cuda" was asked for, and there are not enough GPUs.
    """
    local, locals_ = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    gpus = torch.cuda.device_count()
    if device == "cuda" and gpus < locals_:
        raise UserError(f"device cuda was asked for, but {locals_} processes here have {gpus} GPUs; use device cpu")
    on_gpu = device == "cuda" or (device == "auto" and gpus >= locals_ > 0 and gpus > 0)
    place = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    store: dist.Store = dist.HashStore() if world == 1 else _store(rank, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    return Place(rank, world, place)


def _store(rank: int, world: int) -> dist.Store:
    """The key-value store through which the processes find each other; torchrun's agent hosts it."""
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    shared = dist.TCPStore(address, port, world, is_master=hosts, timeout=TIMEOUT)
    # A part of its own for every attempt: after an elastic restart gloo would read the dead ranks' addresses.
    return dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", shared)


def make_mesh(place: Place, layout: Layout) -> DeviceMesh:
    """The mesh of a layout, over all processes."""
    sizes = (layout.pp, layout.replicate, layout.shard, layout.tp)
    return init_device_mesh(place.device.type, sizes, mesh_dim_names=(PIPELINE, REPLICATE, SHARD, TENSOR))


def together(work: Callable[[], T]) -> T:
    """Run `work` on every process; when one fails, all raise its error, so that none waits for it in vain.

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
    dist.all_gather_object(failures, failure)
    for found in failures:
        if found is not None:
            raise (UserError if found[0] else RunError)(found[1])
    return cast(T, result)


def from_first(work: Callable[[], T]) -> T:
    """Run `work` on the first process and give its result, or its error, to all."""
    box = [together(lambda: work() if dist.get_rank() == 0 else None)]
    dist.broadcast_object_list(box, src=0)
    return cast(T, box[0])
