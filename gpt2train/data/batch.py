"""Batches: the input of the model, and of a training step."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Batch of samples, the input of the model.

    Attributes:
        tokens: int64 [samples, context], inputs.
        targets: int64 [samples, context]; positions with -100 are ignored.
        positions: int64 [samples, context]; None if they run from 0 to context - 1.
        documents: int64 [samples, context], document number of each token, if attention is restricted to a document.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None

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
    """Global batch of one training step, as far as one data-parallel rank needs it.

    Attributes:
        samples: samples of the global batch.
        targets: targets of the global batch that are not ignored, over all processes; at least 1.
        micro_batches: micro-batches of this rank.
    """

    samples: int
    targets: int
    micro_batches: list[Batch]

    def to(self, device: torch.device) -> "StepBatch":
        """Copy to a device; from pinned memory the copy overlaps with computation."""
        return replace(self, micro_batches=[batch.to(device) for batch in self.micro_batches])
