"""What each rank of a job held: parameters and peak memory, as one table on the first rank.

rank  host   pp dp tp   parameters   peak RSS  GPU peak  GPU reserved
   0  gpu01   0  0  0   89,714,688    1.9 GiB   3.0 GiB       4.1 GiB
"""

import logging
import re
import resource
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import Place

log = logging.getLogger("gpt2train")

SHOWN = 32  # ranks; of more, the largest of each place in the model
HEAD = "rank  host              pp   dp   tp    parameters    peak RSS    GPU peak  GPU reserved"


@dataclass(frozen=True)
class Held:
    """What one rank holds, and the most it has used so far."""

    rank: int
    host: str
    pp: int
    dp: int
    tp: int
    parameters: int
    """Elements of the parameters that lie here: the shards of ZeRO and of tensor parallelism."""
    resident: int
    """Peak memory of the process, bytes."""
    allocated: int
    """Peak of what tensors took on the GPU, bytes; 0 without one."""
    reserved: int
    """Peak of what the allocator took on the GPU, bytes; 0 without one."""


def peak_resident() -> int:
    """The most memory that this process has used, in bytes."""
    # The kernel's other answer, getrusage, begins with the size that the parent had when it forked.
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def held_here(place: Place, layout: Layout, parameters: Iterable[Tensor]) -> Held:
    """What this rank holds."""
    at, on_gpu = layout.coordinates(place.rank), place.device.type == "cuda"
    return Held(
        rank=place.rank,
        host=socket.gethostname(),
        pp=at.pp,
        dp=layout.data_rank(place.rank),
        tp=at.tp,
        parameters=sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in parameters),
        resident=peak_resident(),
        allocated=torch.cuda.max_memory_allocated(place.device) if on_gpu else 0,
        reserved=torch.cuda.max_memory_reserved(place.device) if on_gpu else 0,
    )


def tell_memory(place: Place, layout: Layout, parameters: Iterable[Tensor], when: str) -> None:
    """Log the table on the first rank, after one gather; all processes call it together."""
    rows: list[Held] = [None] * place.world if place.is_first else []  # type: ignore[list-item]
    dist.gather_object(held_here(place, layout, parameters), rows if place.is_first else None, dst=0)
    if place.is_first:
        for line in table(rows, when):
            log.info(line)


def table(rows: list[Held], when: str) -> list[str]:
    """The lines of the table, the title among them."""
    title = f"memory {when}"
    if len(rows) > SHOWN:
        largest: dict[tuple[int, int], Held] = {}
        for row in rows:
            best = largest.setdefault((row.pp, row.tp), row)
            if (row.allocated, row.resident) > (best.allocated, best.resident):
                largest[row.pp, row.tp] = row
        title += f": of {len(rows)} ranks, the largest of each pp and tp"
        rows = [largest[place] for place in sorted(largest)]
    return [title, HEAD, *(_line(row) for row in rows)]


def _line(row: Held) -> str:
    gpu = [_size(row.allocated), _size(row.reserved)] if row.reserved else ["-", "-"]
    return (
        f"{row.rank:>4}  {row.host[:16]:<16}  {row.pp:>2}  {row.dp:>3}  {row.tp:>3}  {row.parameters:>12,}  "
        f"{_size(row.resident):>10}  {gpu[0]:>10}  {gpu[1]:>12}"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
