"""What the model is given of some samples."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some samples, as the model takes them.

    Attributes:
        tokens: int64 [samples, context].
        targets: int64 [samples, context]; -100 marks positions that do not count.
        positions: int64 [samples, context] where they do not run from 0 to context - 1.
        documents: int64 [samples, context] number of each token's document, where attention stays within one.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None

    @property
    def marks(self) -> dict[str, Tensor]:
        """`positions` and `documents`, those that are there: keywords of the model."""
        found = {"positions": self.positions, "documents": self.documents}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def pinned(self) -> "Batch":
        """A copy in memory that a GPU reads without waiting."""
        return Batch(**{name: tensor.pin_memory() for name, tensor in self._tensors()})

    def to(self, device: torch.device) -> "Batch":
        """On a device; from pinned memory the copy runs beside the computation."""
        return Batch(**{name: tensor.to(device, non_blocking=True) for name, tensor in self._tensors()})

    def _tensors(self) -> list[tuple[str, Tensor]]:
        found = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, tensor) for name, tensor in found if tensor is not None]
