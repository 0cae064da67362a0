"""Power, energy, utilisation and memory of this process's GPU by NVML.

NVML comes with NVIDIA's driver; its Python bindings are the package nvidia-ml-py (`pip install gpt2train[nvml]`).
Without either of them a run has no such columns, and nothing else changes.
"""

import importlib
import logging
import time
from typing import Any, NamedTuple

import torch

log = logging.getLogger("gpt2train")

GIB = 1 << 30


class GpuUse(NamedTuple):
    """Use of a GPU since the last reading."""

    joules: float  # energy since the last reading
    watts: float  # mean power since the last reading
    utilization: float  # share of the time in which a kernel ran, 0 to 1, in the driver's last sample period
    memory: float  # memory in use by all processes, GiB


class GpuMeter:
    """Meter of one GPU.

    Args:
        nvml: module of the bindings, initialised.
        handle: the bindings' handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._at, self._energy = time.monotonic(), self._counter()

    def read(self) -> GpuUse | None:
        """Read the use since the last call; None if the driver fails, as after a GPU fell off the bus."""
        nvml, at, before = self._nvml, self._at, self._energy
        try:
            self._at, self._energy = time.monotonic(), self._counter()
            seconds = max(self._at - at, 1e-9)
            if self._energy is None or before is None:  # GPUs before Volta have no counter
                watts = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3
                joules = watts * seconds
            else:
                joules = (self._energy - before) / 1e3
                watts = joules / seconds
            share = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle).used / GIB
        except Exception:  # noqa: BLE001 - whatever bindings and driver raise, the result needs no meter
            return None
        return GpuUse(joules, watts, share, memory)

    def _counter(self) -> int | None:
        """Energy since the driver was loaded, millijoules; None if the GPU does not count it."""
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except Exception:  # noqa: BLE001 - as in `read`
            return None


def gpu_meter(device: torch.device) -> GpuMeter | None:
    """Meter of the GPU of this process; None on a CPU, without NVML, and for a part of a GPU (MIG)."""
    if device.type != "cuda":
        return None
    return open_meter(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))


def open_meter(uuid: str) -> GpuMeter | None:
    """Meter of the GPU with a UUID; None without NVML or such a GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return GpuMeter(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}"))
    except Exception as error:  # noqa: BLE001 - as in `GpuMeter.read`
        log.info("no energy of the GPU: NVML: %s", error)
        return None
