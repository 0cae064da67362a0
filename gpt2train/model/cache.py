"""KV cache for a batch of sequences of unequal lengths, in one contiguous block of memory per layer.

A row is a sequence. Rows are stored without gaps from the first one on, so that a step reads slices and copies nothing;
removing a row moves another one into its index (`Cache.select`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Cache:
    """Keys and values of some layers, each [rows, heads, context, head_dim].

    It holds 2 * layers * rows * heads * context * head_dim numbers in all. Rows and context are the largest numbers of
    sequences and of tokens of one. Layers are those of a whole model or of one pipeline stage; heads those of a process
    of a tensor-parallel group.
    """

    def __init__(
        self, layers: int, heads: int, head_dim: int, rows: int, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = (rows, heads, context, head_dim)
        # Zeros: masked entries still enter with weight 0, and 0 times uninitialised memory can be NaN.
        self.layers = [
            (torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device))
            for _ in range(layers)
        ]
        self.rows, self.context, self.device = rows, context, device
        self.lengths: list[int] = []

    def prefill(self, lengths: Sequence[int]) -> list["Prefill"]:
        """Add rows, whose tokens the next forward pass gets, padded on the right to the longest of `lengths`."""
        first = len(self.lengths)
        self.lengths += lengths
        return [Prefill(key, value, first) for key, value in self.layers]

    def step(self) -> list["Step"]:
        """Add one token to every row; the next forward pass gets these tokens."""
        rows, longest = len(self.lengths), max(self.lengths) + 1
        at = torch.tensor(self.lengths, device=self.device)
        mask = None
        if min(self.lengths) + 1 < longest:
            mask = (torch.arange(longest, device=self.device) <= at[:, None])[:, None, None]
        self.lengths = [length + 1 for length in self.lengths]
        return [Step(key[:rows, :, :longest], value[:rows, :, :longest], at, mask) for key, value in self.layers]

    def select(self, sources: Sequence[int]) -> None:
        """Replace row i by the former row `sources[i]`, for all i at once; this drops, moves and copies rows."""
        moved = [row for row, source in enumerate(sources) if row != source]
        if moved:
            read = [sources[row] for row in moved]
            longest = max(self.lengths[row] for row in read)
            for pair in self.layers:
                for tensor in pair:
                    tensor[moved, :, :longest] = tensor[read, :, :longest]
        self.lengths = [self.lengths[source] for source in sources]


class Prefill:
    """Cache of one layer for a forward pass over the first tokens of new rows."""

    def __init__(self, key: Tensor, value: Tensor, first: int) -> None:
        self.key, self.value, self.first = key, value, first

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Store new keys and values [rows, heads, length, head_dim].

        Entries beyond a row's length have no weight until later tokens overwrite them.

        Returns:
            Keys and values that attention reads, and its mask.
        """
        rows, length = slice(self.first, self.first + key.shape[0]), key.shape[2]
        self.key[rows, :, :length] = key
        self.value[rows, :, :length] = value
        return key, value, None


class Step:
    """Cache of one layer for a forward pass over the next token of every row."""

    def __init__(self, key: Tensor, value: Tensor, at: Tensor, mask: Tensor | None) -> None:
        self.key, self.value, self.at, self.mask = key, value, at, mask

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Store new keys and values [rows, heads, 1, head_dim].

        Returns:
            Keys and values that attention reads, and its mask.
        """
        if self.mask is None:
            self.key[:, :, -1:] = key
            self.value[:, :, -1:] = value
        else:
            rows = torch.arange(len(self.at), device=self.at.device)
            self.key[rows, :, self.at] = key[:, :, 0]
            self.value[rows, :, self.at] = value[:, :, 0]
        return self.key, self.value, self.mask
