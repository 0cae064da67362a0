"""Device of a process, and the dtype of sums on it: Apple's MPS has no float64.

ROCm's GPUs are `cuda` to torch. Other accelerators (XPU, …) are not chosen.
"""

import torch
from torch import Tensor

from gpt2train.errors import UserError


def choose_device(
    name: str, processes: int = 1, number: int | None = None, world: int = 1, option: str = "device"
) -> torch.device:
    """Return the device of a process: with `auto` a GPU of CUDA, else Apple's MPS, else the CPU.

    Args:
        name: auto, cpu, cuda or mps.
        processes: processes that share the GPUs which this one sees; each needs one of its own.
        number: number of this process's GPU; None for torch's current one.
        world: processes of the whole job, which MPS has no collectives for.
        option: setting or flag that has the name, for the errors.

    Raises:
        UserError: there is no such device, or there are too few.
    """
    gpus, apple = torch.cuda.device_count(), torch.backends.mps.is_available()
    if name == "cuda" and gpus < processes:
        wanted = "torch finds no GPU on this machine" if processes == 1 else f"{processes} processes have {gpus} GPUs"
        raise UserError(f"{option} cuda: {wanted}; use {option} cpu")
    if name == "mps" and not apple:
        raise UserError(f"{option} mps: torch finds no GPU of Apple on this machine; use {option} cpu")
    if name == "mps" and world > 1:
        raise UserError(f"{option} mps is for one process, and the job has {world}; use {option} cpu, or one process")
    if name != "cpu" and name != "mps" and gpus >= max(1, processes):
        return torch.device("cuda") if number is None else torch.device("cuda", number)
    return torch.device("mps" if name == "mps" or (name == "auto" and apple and world == 1) else "cpu")


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums over many numbers on a device: float64 where it has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def product_dtype(like: Tensor) -> torch.dtype:
    """Dtype of matrix products, under autocast another one than that of a tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype
