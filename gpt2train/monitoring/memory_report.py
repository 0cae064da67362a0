"""Memory report: parameters and peak memory of each rank, as a table on rank 0.

rank  host   pp dp tp   parameters   peak RSS  GPU peak  GPU reserved
   0  gpu01   0  0  0   89,714,688    1.9 GiB   3.0 GiB       4.1 GiB
"""

import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.parallel.grad_norm import local
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import DistContext

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger("gpt2train")

PEAK = re.compile(rb"VmHWM:\s+(\d+) kB")
MAX_ROWS = 32  # with more ranks, only the largest of each (pp, tp) is shown
HEAD = "rank  host              pp   dp   tp    parameters    peak RSS    GPU peak  GPU reserved"


@dataclass(frozen=True)
class RankMemory:
    """Parameters and peak memory of one rank."""

    rank: int
    host: str
    pp: int
    dp: int
    tp: int
    parameters: int  # number of elements of the local parameter shards
    resident: int  # peak resident memory of the process, bytes
    allocated: int  # peak GPU memory of tensors, bytes; 0 without a GPU
    reserved: int  # peak GPU memory reserved by the allocator, bytes; 0 without a GPU


def peak_resident() -> int:
    """Peak resident memory of this process, in bytes."""
    # getrusage would include the size of the parent at the time of the fork.
    # By plain system calls, since it is called in each step: pathlib took 0.2 ms of it, with cold caches.
    with contextlib.suppress(OSError):
        file = os.open("/proc/self/status", os.O_RDONLY)
        try:
            status = os.read(file, 1 << 14)
        finally:
            os.close(file)
        if found := PEAK.search(status):
            return int(found[1]) << 10
    if resource is None:
        return int(psutil.Process().memory_info().peak_wset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def log_memory(ctx: DistContext, layout: Layout, parameters: Iterable[Tensor], when: str) -> None:
    """Log the table on rank 0, after one gather. Collective."""
    at, on_gpu = layout.coordinates(ctx.rank), ctx.device.type == "cuda"
    own = RankMemory(
        rank=ctx.rank,
        host=socket.gethostname(),
        pp=at.pp,
        dp=layout.data_rank(ctx.rank),
        tp=at.tp,
        parameters=sum(local(p).numel() for p in parameters),
        resident=peak_resident(),
        allocated=torch.cuda.max_memory_allocated(ctx.device) if on_gpu else 0,
        reserved=torch.cuda.max_memory_reserved(ctx.device) if on_gpu else 0,
    )
    rows: list[RankMemory] = [own] * ctx.world
    dist.gather_object(own, rows if ctx.is_rank0 else None, dst=0)
    if ctx.is_rank0:
        for line in table(rows, when):
            log.info(line)


def table(rows: list[RankMemory], when: str) -> list[str]:
    """Format the table as lines, including the title."""
    title = f"memory {when}"
    if len(rows) > MAX_ROWS:
        largest: dict[tuple[int, int], RankMemory] = {}
        for row in rows:
            best = largest.setdefault((row.pp, row.tp), row)
            if (row.allocated, row.resident) > (best.allocated, best.resident):
                largest[row.pp, row.tp] = row
        title += f": of {len(rows)} ranks, the largest of each pp and tp"
        rows = [largest[key] for key in sorted(largest)]
    return [title, HEAD, *(_line(row) for row in rows)]


def _line(row: RankMemory) -> str:
    gpu = [_size(row.allocated), _size(row.reserved)] if row.reserved else ["-", "-"]
    return (
        f"{row.rank:>4}  {row.host[:16]:<16}  {row.pp:>2}  {row.dp:>3}  {row.tp:>3}  {row.parameters:>12,}  "
        f"{_size(row.resident):>10}  {gpu[0]:>10}  {gpu[1]:>12}"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
