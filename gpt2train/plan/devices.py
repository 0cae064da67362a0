"""What this machine has to train on, found without torch (1-2 s): its GPUs, its cores, its memory."""

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from gpt2train.metrics import PEAKS
from gpt2train.plan.hardware import GB

ASK_SECONDS = 30.0  # a driver that is loaded first takes some seconds
MIB = 2**20
FIELDS = "index,uuid,name,memory.total"


@dataclass(frozen=True)
class Gpu:
    """One GPU that this process may use.

    Attributes:
        index: on the machine, by the driver's count, whatever is hidden.
        uuid: the maker's.
        memory: GB (10^9 bytes).
    """

    index: int
    uuid: str
    name: str
    memory: float

    @property
    def tflops(self) -> float | None:
        """Dense bfloat16 peak, TFLOP/s; None for a GPU whose data sheet is not in the table."""
        return next((peak / 1e12 for part, peak in PEAKS.items() if part in self.name), None)


def find_gpus(environment: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """The GPUs that this process may use, in the order in which ranks take them; none without a driver.

    `CUDA_VISIBLE_DEVICES` hides and orders them, by index or UUID, as CUDA reads it: the first entry that names no GPU
    ends the list.
    """
    environment = os.environ if environment is None else environment
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    program = shutil.which("nvidia-smi")
    if program is None or (visible is not None and not visible.strip()):
        return ()
    command = [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()  # a driver that does not answer has no GPU to train on
    return visible_of(parse(said), visible)


def parse(said: str) -> tuple[Gpu, ...]:
    """The GPUs of nvidia-smi's lines `index, uuid, name, MiB`."""
    found = []
    for row in csv.reader(said.splitlines(), skipinitialspace=True):
        if len(row) == 4 and row[0].isdigit():
            memory = re.match(r"\d+", row[3])  # "[N/A]" where memory is shared with the CPU
            found.append(Gpu(int(row[0]), row[1], row[2], int(memory[0]) * MIB / GB if memory else memory_of_cpu()))
    return tuple(found)


def visible_of(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Those that `CUDA_VISIBLE_DEVICES` leaves, in its order."""
    if visible is None:
        return tuple(gpus)
    kept: list[Gpu] = []
    for wanted in (part.strip() for part in visible.split(",")):
        named = [gpu for gpu in gpus if wanted == str(gpu.index) or (wanted[4:] and gpu.uuid.startswith(wanted))]
        if not named or named[0] in kept:
            break
        kept.append(named[0])
    return tuple(kept)


def memory_of_cpu() -> float:
    """Memory of the machine, GB."""
    return float(psutil.virtual_memory().total) / GB
