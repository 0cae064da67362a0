"""How the processes of a job find each other, attempt after attempt, and how the one that went silent is found.

All meet in one key-value store. It can outlive an attempt: torchrun's agent keeps it, and after a restart holds what
dead processes wrote, gloo's addresses among it. So every attempt has a part of its own, named by its first process.
An attempt's number would not do as the name: each machine counts its own restarts, and they can differ.
"""

import contextlib
import socket
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from gpt2train.cluster import Seat
from gpt2train.errors import RunError, UserError

PAUSE = 0.02  # seconds between two looks of the first process at who has come
SILENCE = timedelta(seconds=5)  # what the store gets to answer once something is wrong
# How long after the first process lost contact the others may say that they did: their timers ran out within the
# time of a step, and a closed connection reaches them at once.
ROLL_CALL = 5.0


_room: "Room | None" = None


def enter(seat: Seat, timeout: timedelta) -> dist.Store:
    """Meet the other processes; the store of this attempt.

    Raises:
        UserError: the port is taken.
        RunError: some, or the first, did not come within the timeout.
    """
    global _room
    _room = Room(seat, timeout)
    return _room.store


def silent(timed_out: bool) -> list[int] | None:
    """The ranks that hang, once contact is lost, for the one process that is to tell; None on the others."""
    return _room.silent(timed_out) if _room else None


def part() -> None:
    """Leave, at the end of a job that went well."""
    if _room:
        _room.part()


class Room:
    """The part of the store that belongs to one attempt."""

    def __init__(self, seat: Seat, timeout: timedelta) -> None:
        self.seat = seat
        self._shared = _open(seat, timeout)
        job = dist.PrefixStore(f"gpt2train/{seat.job}", self._shared)
        name = _call_names(job, seat, timeout) if seat.rank == 0 else _answer(job, seat, timeout)
        self.store = dist.PrefixStore(name, job)

    def silent(self, timed_out: bool) -> list[int] | None:
        """The ranks that say nothing though contact was lost, for one process to tell; None on the others.

        The process that waited in vain tells, the first of them where there are several. Where a process just died
        nobody did: its connections broke, and the launcher saw its end.
        """
        others = [rank for rank in range(self.seat.world) if rank != self.seat.rank]
        try:
            self._shared.set_timeout(SILENCE)
            self.store.set(f"lost/{self.seat.rank}", "timeout" if timed_out else "broken")
            if not timed_out:
                return None
            end = time.monotonic() + ROLL_CALL
            while others and time.monotonic() < end:
                others = [rank for rank in others if not self.store.check([f"lost/{rank}"])]
                time.sleep(PAUSE)
            came = sorted(set(range(self.seat.rank)) - set(others))
            if any(self.store.get(f"lost/{rank}") == b"timeout" for rank in came):
                return None
        except (dist.DistError, RuntimeError):
            return [0] if self.seat.rank else others  # the first process, or its machine, has the store
        return others

    def part(self) -> None:
        """Let the process that has the store be the last to go."""
        with contextlib.suppress(dist.DistError, RuntimeError):
            self._shared.set_timeout(SILENCE)
            self.store.set(f"left/{self.seat.rank}", "")
            if self.seat.hosts_store:
                self.store.wait([f"left/{rank}" for rank in range(self.seat.world)], SILENCE)


def _open(seat: Seat, timeout: timedelta) -> dist.TCPStore:
    try:
        return dist.TCPStore(
            seat.host, seat.port, None, is_master=seat.hosts_store, timeout=timeout, wait_for_workers=False
        )
    except dist.DistNetworkError as error:
        if seat.hosts_store and "EADDRINUSE" in str(error):
            raise UserError(
                f"port {seat.port} of this machine is taken; set MASTER_PORT to a free one, the same for all processes"
            ) from error
        raise RunError(
            f"rank {seat.rank} on {socket.gethostname()} cannot reach {seat.host}:{seat.port}, where the processes "
            "meet; is the first process there, and may the machines talk on that port?"
        ) from error


def _call_names(job: dist.Store, seat: Seat, timeout: timedelta) -> str:
    """Name the attempt, and tell it to every process that asks until all have confirmed."""
    name = uuid.uuid4().hex
    missing = list(range(1, seat.world))
    end = time.monotonic() + timeout.total_seconds()
    while True:
        for rank in missing:
            if job.check([f"ask/{rank}"]):  # by this attempt's process, or by a dead one, which confirms nothing
                job.set(f"answer/{job.get(f'ask/{rank}').decode()}", name)
        missing = [rank for rank in missing if not job.check([f"{name}/here/{rank}"])]
        if not missing:
            return name
        if time.monotonic() > end:
            raise RunError(
                f"{ranks(missing)} of {seat.world} did not come within {timeout.total_seconds():.0f} s; see whether "
                "they were started, and their machines reach this one"
            )
        time.sleep(PAUSE)


def _answer(job: dist.Store, seat: Seat, timeout: timedelta) -> str:
    """Ask for the attempt's name and confirm it."""
    mine = uuid.uuid4().hex
    job.set(f"ask/{seat.rank}", mine)
    try:
        job.wait([f"answer/{mine}"], timeout)
    except dist.DistStoreError as error:
        raise RunError(
            f"the first process did not come to {seat.host}:{seat.port} within {timeout.total_seconds():.0f} s; "
            f"rank {seat.rank} on {socket.gethostname()} gives up"
        ) from error
    name = str(job.get(f"answer/{mine}").decode())
    job.set(f"{name}/here/{seat.rank}", "")
    return name


def ranks(numbers: list[int]) -> str:
    """`rank 3`, or `ranks 1, 2, 5 and 90 more`."""
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"
