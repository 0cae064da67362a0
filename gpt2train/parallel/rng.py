"""Random numbers of dropout: which processes draw the same ones, and which must not.

Each process starts every step from a seed that follows from `(seed, step, where it stands)`, so that a run that goes
on needs no saved state. Processes of one tensor-parallel group share that seed: where each holds the whole of a
tensor, all drop the same elements. Where each holds a part of it (attention heads), a region of `apart` makes their
masks differ: with one mask for all, the heads of one process would drop in step with those of another.

Rule: Megatron-LM (`model_parallel_cuda_manual_seed`), there with a second state to save; here the second seed is
drawn from the first, so that activation recomputation, which restores the first, restores both.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def dropout_seed(seed: int, step: int, *coordinates: int) -> int:
    """The seed of one process for one step; processes with equal `coordinates` draw equal numbers.

    The coordinates are those of the mesh in which masks must differ: pipeline stage and data-parallel rank always, the
    tensor-parallel rank under sequence parallelism, where every process holds other tokens.
    """
    return _hashed("dropout", seed, step, *coordinates)


@contextlib.contextmanager
def apart(rank: int, device: torch.device) -> Iterator[None]:
    """Draw other numbers than the other ranks of the group, then go on together where all stood before.

    Takes one number from the CPU's default generator, which must stand at the same place on all ranks of the group.
    """
    common = int(torch.randint(1 << 62, ()))
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type):
        torch.manual_seed(_hashed("apart", common, rank))
        yield


def _hashed(*parts: str | int) -> int:
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
