"""Process group, device mesh and collective error handling.

One mesh `(pp, dp_replicate, dp_shard, tp)` serves every layout; for a single process all sizes are 1.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gpt2train.errors import RunError, UserError
from gpt2train.launch import rank_store
from gpt2train.launch.network_interfaces import check_interface, forget_loopback, use_loopback
from gpt2train.launch.process_env import ProcessEnv, read_process_env
from gpt2train.model.device import choose_device
from gpt2train.parallel.layout import Layout

T = TypeVar("T")

PIPELINE, REPLICATE, SHARD, TENSOR = "pp", "dp_replicate", "dp_shard", "tp"  # dimensions of the mesh
# A hung rank is detected after this time. torch's defaults of 10 and 30 minutes are too long for a lost machine. A rank
# that hashes a checkpoint of 22 GB (1542m) on a slow disk, or compiles, makes the others wait for 2 minutes.
TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True)
class DistContext:
    """Distributed context of this process."""

    rank: int  # rank of this process
    world: int  # world size
    device: torch.device  # device on which it computes
    timeout: timedelta = TIMEOUT  # timeout of collectives

    @property
    def is_rank0(self) -> bool:
        """True on rank 0, which writes files that exist once per run."""
        return self.rank == 0


def join(device: str, env: ProcessEnv | None = None, timeout: timedelta = TIMEOUT) -> DistContext:
    """Join the process group of a job, or create one of a single process.

    gloo transfers tensors in CPU memory, NCCL tensors on GPUs.

    Args:
        device: "cpu", "cuda", "mps", or "auto" for a GPU if there is one for every local process.
        env: rank and world size; read from the environment variables by default.
        timeout: timeout of joining and of every collective.

    Raises:
        UserError: there are too few devices of this kind, or the environment variables are inconsistent.
        RunError: other ranks did not join within the timeout.
    """
    env = env or read_process_env(os.environ)
    sharing, number = (1, 0) if env.own_gpu else (env.local_world, env.local_rank)
    own_device = choose_device(device, sharing, number, env.world)
    if on_gpu := own_device.type == "cuda":
        torch.cuda.set_device(own_device)
    if env.world == 1 or env.one_machine:
        use_loopback(os.environ)
    else:
        forget_loopback(os.environ)
    check_interface(os.environ)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "cpu:gloo" if own_device.type == "mps" else "gloo"
    store = rank_store.join(env, timeout) if env.world > 1 else dist.HashStore()
    dist.init_process_group(
        backend,
        store=store,
        rank=env.rank,
        world_size=env.world,
        timeout=timeout,
        # NCCL connects now, so that its errors are found here and not in the first step, and never guesses the device.
        # The other groups then split this one: all ranks must create each of them, in the same order.
        device_id=own_device if on_gpu and env.world > 1 else None,
    )
    return DistContext(env.rank, env.world, own_device, timeout)


def make_mesh(ctx: DistContext, layout: Layout) -> DeviceMesh:
    """Create the device mesh of a layout, over all processes.

    The groups are created here, since torch would use its default timeout for them, half an hour on gloo. Dimensions of
    size 1 share one group: with NCCL each creation is a collective of all processes.
    """
    names = (PIPELINE, REPLICATE, SHARD, TENSOR)
    ranks = torch.arange(ctx.world).view(layout.pp, layout.replicate, layout.shard, layout.tp)
    own = own_group([[rank] for rank in range(ctx.world)], ctx.timeout, "one process")
    groups: list[Any] = []
    for dimension, size in enumerate(ranks.shape):
        rows = ranks.movedim(dimension, -1).reshape(-1, size).tolist()
        groups.append(own if size == 1 else own_group(rows, ctx.timeout, names[dimension]))
    kind = "cpu" if ctx.device.type == "mps" else ctx.device.type  # of one process, which sends nothing
    return DeviceMesh.from_group(groups, kind, ranks, mesh_dim_names=names)


def shards_group(ctx: DistContext, layout: Layout) -> dist.ProcessGroup | None:
    """Create the groups of the processes whose shards make a whole parameter, by ZeRO and tensor parallelism together.

    None if not both of them split the parameters: then a dimension of the mesh is such a group. Collective.
    """
    if layout.shard == 1 or layout.tp == 1:
        return None
    rows = torch.arange(ctx.world).view(-1, layout.shard * layout.tp)
    return own_group(rows.tolist(), ctx.timeout, "shards")


def own_group(rows: Sequence[Sequence[int]], timeout: timedelta, description: str) -> dist.ProcessGroup | None:
    """Create groups of ranks, and return the one with this process; None if it is in none. Collective.

    All processes create all groups. A simulated rank, whose peers do not exist, creates its own alone: all groups of a
    mesh of 4,096 ranks take minutes, those of one rank 10 ms. Real ranks cannot, since torch derives the name of such a
    group from the number of groups that the process has, which differs between pipeline stages.
    """
    if dist.get_backend() != "fake":
        group, _ = dist.new_subgroups_by_enumeration(rows, timeout=timeout, group_desc=description)
        return group
    for row in rows:
        if dist.get_rank() in row:
            return dist.new_group(row, timeout, use_local_synchronization=True, group_desc=description)
    return None


def all_or_raise(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run `work` on every process; if one fails, all raise its error, so that none waits for it. Collective.

    Returns:
        The result of `work` on this process.

    Raises:
        UserError: that of the lowest rank that failed.
        RunError: that of the lowest rank that failed.
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


def broadcast_from_rank0(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run `work` on rank 0 and return its result, or raise its error, on all processes. Collective."""
    box = [all_or_raise(lambda: work() if dist.get_rank() == 0 else None, group)]
    dist.broadcast_object_list(box, src=0, group=group)
    return cast(T, box[0])


def first_of_ranks(value: T | None) -> T | None:
    """Value of the lowest rank on which it is not None; None if there is none. Collective."""
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return next((found for found in values if found is not None), None)


def any_rank(flag: bool) -> bool:
    """Return True if `flag` is set on any process. Collective."""
    count = torch.tensor(float(flag))  # on the CPU: reduced by gloo, without a GPU sync
    dist.all_reduce(count)
    return bool(count.item() > 0)
