"""Slowest rank, use of the GPUs and energy over all processes, gathered without waiting.

The numbers are sent a step before a log line and read at the line: the collectives of the step between them have
already waited for all processes, so that the gathering itself does not.
"""

import math
import socket
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.monitoring.cpu_meter import CpuMeter, open_cpu_meter
from gpt2train.monitoring.gpu_meter import GpuMeter, GpuUse
from gpt2train.parallel.mesh import DistContext
from gpt2train.training.phases import PHASES

ENERGY = ("gpu_joules", "cpu_joules")  # columns of energy since the last row that has them
MIN_EXCESS = 0.1  # work of the slowest rank over the median from which a log line names it


class RankReport:
    """Gatherer of the ranks' numbers. All processes create it and call it at the same steps.

    Args:
        ctx: distributed context.
        interval: steps between log lines.
        meter: meter of this process's GPU, if there is one.
    """

    def __init__(self, ctx: DistContext, interval: int, meter: GpuMeter | None) -> None:
        self._ctx, self._interval, self._meter = ctx, interval, meter
        self._pending: tuple[dist.Work | None, list[Tensor]] | None = None
        self._rows: list[Mapping[str, Any]] = []  # since the last sending
        self.hosts = [socket.gethostname()] * ctx.world
        if ctx.world > 1:
            dist.all_gather_object(self.hosts, socket.gethostname())
        # One process of each machine has the meter of its CPUs.
        self._reads_cpu = self.hosts.index(self.hosts[ctx.rank]) == ctx.rank
        self._cpu: CpuMeter | None = open_cpu_meter() if self._reads_cpu else None

    def __call__(self, row: Mapping[str, Any], last: bool) -> dict[str, float]:
        """Take the metrics of a step, and return the columns of the ranks if there are new ones.

        Args:
            row: metrics of the step, with its phases.
            last: True at the last step of the run, after which the processes do wait.
        """
        if self._ctx.world == 1 and self._meter is None and self._cpu is None:
            return {}
        if self._cpu is not None:
            self._cpu.update()
        self._rows.append(row)
        columns = self._receive()
        if last or (row["step"] + 1) % self._interval == 0:
            self._send()
        if last:  # the energy of both sendings is in the last row
            newer = self._receive()
            sums = {name: round(columns[name] + newer[name], 3) for name in ENERGY if name in columns and name in newer}
            return columns | newer | sums
        return columns

    def _send(self) -> None:
        use = None if self._meter is None else self._meter.read()
        cpu = self._cpu_joules()
        numbers = [*work_and_waiting(self._rows), *(use or [math.nan] * len(GpuUse._fields)), cpu]
        own = torch.tensor(numbers, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self._ctx.world)]
        work = dist.all_gather(gathered, own, async_op=True)
        self._pending, self._rows = (work, gathered), []

    def _receive(self) -> dict[str, float]:
        if self._pending is None:
            return {}
        work, gathered = self._pending
        self._pending = None
        if work is not None:
            work.wait()
        numbers = [tensor.tolist() for tensor in gathered]
        gpus = [GpuUse(*rank[2:-1]) for rank in numbers]
        return slowest(numbers) | gpu_columns(gpus) | cpu_columns([rank[-1] for rank in numbers])

    def _cpu_joules(self) -> float:
        """Joules of this machine's CPUs since the last sending, 0 from all but one process of it; NaN if unknown."""
        if not self._reads_cpu:
            return 0.0
        joules = None if self._cpu is None else self._cpu.read()
        return math.nan if joules is None else joules


def work_and_waiting(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Mean seconds of a step in which this process worked and in which it waited; NaN where waiting is not measured."""
    if not rows or "communication_seconds" not in rows[-1]:
        return math.nan, math.nan
    total = sum(row[f"{phase}_seconds"] for row in rows for phase in PHASES)
    waited = sum(row["communication_seconds"] for row in rows)
    return (total - waited) / len(rows), waited / len(rows)


def slowest(ranks: Sequence[Sequence[float]]) -> dict[str, float]:
    """Columns of the rank that worked longest; none with one rank or if waiting is not measured.

    Args:
        ranks: seconds of work and of waiting of each rank.
    """
    work, waiting = [rank[0] for rank in ranks], [rank[1] for rank in ranks]
    if len(ranks) == 1 or not all(math.isfinite(seconds) for seconds in (*work, *waiting)):
        return {}
    number = max(range(len(ranks)), key=lambda rank: work[rank])
    others = [waiting[rank] / (work[rank] + waiting[rank] or 1.0) for rank in range(len(ranks)) if rank != number]
    return {
        "slowest_rank": number,
        "slowest_rank_excess": round(work[number] / (statistics.median(work) or 1.0) - 1, 4),
        "waiting": round(statistics.fmean(others), 4),
    }


def gpu_columns(ranks: Sequence[GpuUse]) -> dict[str, float]:
    """Columns of the GPUs that have a meter: sums of power and energy, mean utilisation, largest memory."""
    known = [use for use in ranks if math.isfinite(use.joules)]
    if not known:
        return {}
    return {
        "gpu_joules": round(sum(use.joules for use in known), 3),
        "gpu_watts": round(sum(use.watts for use in known), 1),
        "gpu_utilization": round(statistics.fmean(use.utilization for use in known), 4),
        "gpu_memory_gib": round(max(use.memory for use in known), 3),
    }


def cpu_columns(joules: Sequence[float]) -> dict[str, float]:
    """Column of the CPUs' energy, a sum over all machines; none if it is unknown of one of them.

    Args:
        joules: joules of each rank's machine, of one rank of each, and 0 of the others.
    """
    return {"cpu_joules": round(sum(joules), 3)} if all(map(math.isfinite, joules)) else {}


def slowest_line(row: Mapping[str, Any], hosts: Sequence[str]) -> str | None:
    """Format the slowest rank as a part of a log line; None if it is hardly slower than the others."""
    if row.get("slowest_rank_excess", 0.0) < MIN_EXCESS:
        return None
    number = row["slowest_rank"]
    excess, waiting = f"{row['slowest_rank_excess']:.0%}", f"{row['waiting']:.0%}"
    return f"slowest rank {number} ({hosts[number]}): {excess} more work than the median, the others wait {waiting}"
