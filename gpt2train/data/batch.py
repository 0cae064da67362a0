"""Batches: the input of the model and of a training step, and their preparation in a thread while the model computes.

The thread is a few steps ahead of the training loop. Batches are a function of the sample index alone and come in the
order of the steps, so nothing depends on the thread's speed. numpy releases the GIL while it gathers tokens from the
memory maps, and so does waiting for the disk.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")

PREFETCH_STEPS = 2  # so that a stall of the disk may last a whole step


@dataclass(frozen=True)
class Batch:
    """Batch of samples, the input of the model; the first dimension of all tensors is the sample.

    Attributes:
        tokens: inputs, int64 [samples, length].
        targets: what the loss compares with, int64; for next-token prediction [samples, length], without the positions
            that are -100.
        extra: further keyword arguments of the model's forward, such as `positions` and `documents`. The same names in
            all batches of a run.
    """

    tokens: Tensor
    targets: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def pinned(self) -> "Batch":
        """Copy to pinned memory, from which a GPU copies asynchronously."""
        return self._map(Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """Copy to a device; from pinned memory the copy overlaps with computation."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        extra = {name: change(tensor) for name, tensor in self.extra.items()}
        return Batch(change(self.tokens), change(self.targets), extra)


@dataclass(frozen=True)
class StepBatch:
    """Global batch of one training step, as far as one data-parallel rank needs it."""

    samples: int  # of the global batch
    targets: int  # of the global batch, not ignored, over all processes; at least 1
    micro_batches: list[Batch]  # of this rank

    def to(self, device: torch.device) -> "StepBatch":
        """Copy to a device; from pinned memory the copy overlaps with computation."""
        return replace(self, micro_batches=[batch.to(device) for batch in self.micro_batches])


@contextlib.contextmanager
def prefetch(source: Iterator[T], ahead: int = PREFETCH_STEPS) -> Iterator[Iterator[T]]:
    """Iterate over the items of an iterator, which a thread prepares in advance.

    An error of the source is raised in place of its item. Leaving the context ends the thread, after the item that is
    being prepared.

    From now on only the thread uses the source. At most `ahead` items are prepared; 0 prepares each on request, without
    a thread.
    """
    if not ahead:
        yield source
        return
    end = object()
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting = collections.deque(thread.submit(next, source, end) for _ in range(ahead))

        def items() -> Iterator[T]:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(thread.submit(next, source, end))
                yield cast(T, item)

        yield items()
    finally:
        thread.shutdown(cancel_futures=True)
