"""Random number generation for dropout on parallel layouts.

Each process starts every step from a seed computed from `(seed, step, coordinates)`, so that no generator state needs
saving. The processes of a tensor-parallel group share that seed: for replicated tensors all drop the same elements. For
sharded tensors (attention heads), `per_rank_rng` makes the masks differ; otherwise the heads of different processes
would have equal masks.

The rule is Megatron-LM's (`model_parallel_cuda_manual_seed`), which has a second state to save. Here the second seed is
drawn from the first generator, so that activation recomputation, which restores the first, restores both.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def dropout_seed(seed: int, step: int, *coordinates: int) -> int:
    """Seed of one process for one step; processes with equal `coordinates` draw equal numbers.

    Args:
        seed: seed of the run.
        step: step number.
        *coordinates: coordinates in which masks must differ: pipeline stage and data-parallel rank, and the
            tensor-parallel rank under sequence parallelism, where every process has different tokens.
    """
    return _hashed("dropout", seed, step, *coordinates)


@contextlib.contextmanager
def per_rank_rng(rank: int, device: torch.device) -> Iterator[None]:
    """Draw different numbers on each rank of a group, then continue with the previous, common generator state.

    It draws one number from the CPU's default generator, whose state must be the same on all ranks of the group.
    """
    common = int(torch.randint(1 << 62, ()))
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type):
        torch.manual_seed(_hashed("apart", common, rank))
        yield


def _hashed(*parts: str | int) -> int:
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
