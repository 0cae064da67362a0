"""Keys and values of tokens already seen, for many sequences of unequal lengths in one block of memory.

A row is a sequence. Rows lie without gaps from the first one on, so that a step reads slices and copies nothing; who
takes a row away moves another into its place (`Cache.select`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Cache:
    """Keys and values of some layers, each [rows, heads, context, head_dim]; 2 * layers * rows * heads * context *
    head_dim numbers in all.

    Args:
        layers: how many (those of a whole model, or of one pipeline stage).
        heads: of one layer (a tensor-parallel process has its own ones).
        rows: sequences that fit in.
        context: tokens of a sequence that fit in.
    """

    def __init__(
        self, layers: int, heads: int, head_dim: int, rows: int, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = (rows, heads, context, head_dim)
        # Zeros: what is masked still takes part with weight 0, and 0 times what lies in fresh memory can be NaN.
        self.layers = [
            (torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device))
            for _ in range(layers)
        ]
        self.rows, self.context, self.device = rows, context, device
        self.lengths: list[int] = []

    def begin(self, lengths: Sequence[int]) -> list["Prefill"]:
        """Add rows whose tokens come in the next forward pass, padded on the right to the longest of `lengths`."""
        first = len(self.lengths)
        self.lengths += lengths
        return [Prefill(key, value, first) for key, value in self.layers]

    def go_on(self) -> list["Step"]:
        """One more token for every row, in the next forward pass."""
        rows, longest = len(self.lengths), max(self.lengths) + 1
        at = torch.tensor(self.lengths, device=self.device)
        mask = None
        if min(self.lengths) + 1 < longest:
            mask = (torch.arange(longest, device=self.device) <= at[:, None])[:, None, None]
        self.lengths = [length + 1 for length in self.lengths]
        return [Step(key[:rows, :, :longest], value[:rows, :, :longest], at, mask) for key, value in self.layers]

    def select(self, sources: Sequence[int]) -> None:
        """Row i becomes what row `sources[i]` was: rows are dropped, moved, or copied, all at once."""
        moved = [row for row, source in enumerate(sources) if row != source]
        if moved:
            read = [sources[row] for row in moved]
            longest = max(self.lengths[row] for row in read)
            for pair in self.layers:
                for tensor in pair:
                    tensor[moved, :, :longest] = tensor[read, :, :longest]
        self.lengths = [self.lengths[source] for source in sources]


class Prefill:
    """One layer's share of a forward pass over the first tokens of new rows."""

    def __init__(self, key: Tensor, value: Tensor, first: int) -> None:
        self.key, self.value, self.first = key, value, first

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keep new keys and values [rows, heads, length, head_dim]; those that attention reads, and its mask.

        What stands right of a row's end has no weight until later tokens overwrite it.
        """
        rows, length = slice(self.first, self.first + key.shape[0]), key.shape[2]
        self.key[rows, :, :length] = key
        self.value[rows, :, :length] = value
        return key, value, None


class Step:
    """One layer's share of a forward pass over one more token of every row."""

    def __init__(self, key: Tensor, value: Tensor, at: Tensor, mask: Tensor | None) -> None:
        self.key, self.value, self.at, self.mask = key, value, at, mask

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keep new keys and values [rows, heads, 1, head_dim]; those that attention reads, and its mask."""
        if self.mask is None:
            self.key[:, :, -1:] = key
            self.value[:, :, -1:] = value
        else:
            rows = torch.arange(len(self.at), device=self.at.device)
            self.key[rows, :, self.at] = key[:, :, 0]
            self.value[rows, :, self.at] = value[:, :, 0]
        return self.key, self.value, self.mask
