"""GPUs and memory of this machine, found without importing torch (1-2 s)."""

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from gpt2train.monitoring.gpu_peaks import peak_flops
from gpt2train.plan.hardware import GB

QUERY_SECONDS = 30.0  # timeout; loading the driver takes some seconds
MIB = 2**20
FIELDS = "index,uuid,name,memory.total"


@dataclass(frozen=True)
class Gpu:
    """GPU that this process may use."""

    index: int  # index on the machine by the driver, independent of `CUDA_VISIBLE_DEVICES`
    uuid: str  # UUID by the driver
    name: str  # product name
    memory: float  # memory in GB (10^9 bytes)

    @property
    def tflops(self) -> float | None:
        """Dense half-precision peak, TFLOP/s; None for a GPU that is not in the table."""
        peak = peak_flops(self.name)
        return None if peak is None else peak / 1e12


def usable_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_gpus(environment: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """Find the GPUs that this process may use, in the order of the local ranks; empty without a driver.

    `CUDA_VISIBLE_DEVICES` selects and orders them by index or UUID, as in CUDA: the list ends at the first unknown
    entry.
    """
    environment = os.environ if environment is None else environment
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    program = shutil.which("nvidia-smi")
    if program is None or (visible is not None and not visible.strip()):
        return ()
    command = [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()  # a driver that does not respond has no usable GPU
    return visible_of(parse(output), visible)


def parse(output: str) -> tuple[Gpu, ...]:
    """Parse nvidia-smi's lines `index, uuid, name, MiB`."""
    found = []
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) == 4 and row[0].isdigit():
            memory = re.match(r"\d+", row[3])  # "[N/A]" if memory is shared with the CPU
            found.append(Gpu(int(row[0]), row[1], row[2], int(memory[0]) * MIB / GB if memory else memory_of_cpu()))
    return tuple(found)


def visible_of(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Select and order GPUs by a value of `CUDA_VISIBLE_DEVICES`; None keeps all."""
    if visible is None:
        return tuple(gpus)
    kept: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        named = [gpu for gpu in gpus if entry == str(gpu.index) or (entry[4:] and gpu.uuid.startswith(entry))]
        if not named or named[0] in kept:
            break
        kept.append(named[0])
    return tuple(kept)


def memory_of_cpu() -> float:
    """Return the memory of the machine in GB."""
    return float(psutil.virtual_memory().total) / GB
