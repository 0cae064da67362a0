"""AdamW whose state is in CPU memory, of all parameters or of those that do not fit on the device.

ZeRO-Offload (Ren et al. 2021) for weights on the device: gradients go to the CPU, AdamW runs there on a copy of the
weights, and the new weights come back.
"""

import logging
from collections.abc import Collection, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.config import OptimizerSettings
from gpt2train.parallel.grad_norm import local
from gpt2train.training.adamw import STATE, AdamW

log = logging.getLogger("gpt2train")

STATE_BYTES = 8  # per parameter: AdamW's two moments
RESERVE = 0.08  # fraction of a device's memory that is not filled: fragmentation, validation (as `gpt2train plan`)
MAX_WEIGHTS = 0.7  # fraction of a device's memory that weights and gradients may take beside activations


def available_memory(device: torch.device) -> int | None:
    """Bytes of a device that this process has or can get; None on a CPU, where state and weights lie together."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def weights_fit(count: int, device: torch.device) -> bool:
    """Return True if the weights and gradients of every process fit its device. Collective."""
    available = available_memory(device)
    fits = available is None or 2 * 4 * count <= MAX_WEIGHTS * available
    flag = torch.tensor(float(fits), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


class OffloadedAdamW:
    """AdamW with the state of some parameters on the device of the weights and of all others in CPU memory.

    The copies of the weights on the CPU are filled at each update, so that whatever loads weights need not know them.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]], settings: OptimizerSettings) -> None:
        self.named = list(named)
        self._settings = settings
        self.device = local(self.named[0][1].detach()).device
        self.resident: tuple[str, ...] = ()
        self._split(())

    def step(self, gradients: Iterable[Tensor], rate: Tensor, divisor: Tensor, skip: Tensor) -> None:
        """Apply one update, or skip it; arguments as those of `AdamW.step`, on the device."""
        given = dict(zip((name for name, _ in self.named), gradients, strict=True))
        if self._on_device is not None:
            self._on_device.step([given[name] for name in self.resident], rate, divisor, skip)
        if self._on_cpu is None:
            return
        shards = {name: local(parameter.detach()) for name, parameter in self.named}
        copies = [(shards[name], local(copy)) for name, copy in self._on_cpu.named]
        for shard, copy in copies:
            copy.copy_(shard, non_blocking=True)
        moved = [given[name].to("cpu", non_blocking=True) for name, _ in self._on_cpu.named]
        numbers = [number.to("cpu") for number in (rate, divisor, skip)]
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # the CPU reads what the copies have written
        self._on_cpu.step(moved, *numbers)
        for shard, copy in copies:
            shard.copy_(copy, non_blocking=True)

    def state(self) -> Mapping[str, Tensor]:
        """State by the same names as that of `AdamW`, some on the device, some in CPU memory."""
        parts = [part.state() for part in (self._on_device, self._on_cpu) if part is not None]
        found = {key: value for part in parts for key, value in part.items()}
        return {key: found[key] for name, _ in self.named for key in (f"{name}.{kind}" for kind in (*STATE, "step"))}

    def fill(self, room: int) -> None:
        """Move the state of as many parameters to the device as fit, largest first."""
        chosen: list[str] = []
        for name, parameter in sorted(self.named, key=lambda pair: -local(pair[1].detach()).numel()):
            size = STATE_BYTES * local(parameter.detach()).numel()
            if size <= room:
                chosen.append(name)
                room -= size
        before = self.state()
        self._split(chosen)
        for key, value in self.state().items():
            local(value).copy_(local(before[key]))

    def _split(self, resident: Collection[str]) -> None:
        """Divide the parameters, with fresh state."""
        pinned = self.device.type == "cuda"
        on_device = [(name, parameter) for name, parameter in self.named if name in resident]
        on_cpu = [
            (name, torch.empty_like(parameter.detach(), device="cpu", pin_memory=pinned))
            for name, parameter in self.named
            if name not in resident
        ]
        self.resident = tuple(name for name, _ in on_device)
        self._on_device = AdamW(on_device, self._settings) if on_device else None
        self._on_cpu = AdamW(on_cpu, self._settings) if on_cpu else None


def fill_device(optimizer: OffloadedAdamW) -> None:
    """Use what the first step has left of the device's memory for optimizer state; on a CPU, all of it."""
    available = available_memory(optimizer.device)
    size = sum(STATE_BYTES * local(parameter.detach()).numel() for _, parameter in optimizer.named)
    room = size
    if available is not None:
        room = int(available * (1 - RESERVE)) - torch.cuda.max_memory_allocated(optimizer.device)
    optimizer.fill(max(0, room))
    log.info("optimizer state of %d of %d tensors is on the device", len(optimizer.resident), len(optimizer.named))
