"""Batches: the input of the model and of a training step, and their preparation in a thread while the model computes.

The thread is a few steps ahead of the training loop. Batches are a function of the sample index alone and come in the
order of the steps, so nothing depends on the thread's speed. numpy releases the GIL while it gathers tokens from the
memory maps, and so does waiting for the disk.
"""

import collections
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")

PREFETCH_STEPS = 2  # so that a stall of the disk may last a whole step


@dataclass(frozen=True)
class Batch:
    """Batch of samples, the input of the model."""

    tokens: Tensor  # inputs, int64 [samples, context], as all
    targets: Tensor  # positions with -100 are ignored
    positions: Tensor | None = None  # None if they run from 0 to context - 1
    documents: Tensor | None = None  # document number of each token, if attention is restricted to a document

    @property
    def marks(self) -> dict[str, Tensor]:
        """Optional keyword arguments of the model: `positions` and `documents`, if set."""
        found = {"positions": self.positions, "documents": self.documents}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def pinned(self) -> "Batch":
        """Copy to pinned memory, from which a GPU copies asynchronously."""
        return Batch(**{name: tensor.pin_memory() for name, tensor in self._tensors()})

    def to(self, device: torch.device) -> "Batch":
        """Copy to a device; from pinned memory the copy overlaps with computation."""
        return Batch(**{name: tensor.to(device, non_blocking=True) for name, tensor in self._tensors()})

    def _tensors(self) -> list[tuple[str, Tensor]]:
        found = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, tensor) for name, tensor in found if tensor is not None]


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
