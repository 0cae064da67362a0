"""Sizes of a GPT-2, separate from the model so that settings and commands need not import torch (1-2 s)."""

from dataclasses import dataclass

PADDING = 128  # fast for matrix kernels, and the same sizes on all layouts of up to 128 tensor-parallel ranks


@dataclass(frozen=True)
class Shape:
    """Sizes that determine the parameters of a GPT-2.

    `padded_vocab` is `vocab` rounded up to a multiple of 128, for matrix kernels and tensor-parallel shards. The rows
    above `vocab` are never a target, are excluded from the loss, and are cut off on export.
    """

    vocab: int
    layers: int
    heads: int
    hidden: int
    context: int

    @property
    def padded_vocab(self) -> int:
        """Rows of the token embedding: `vocab` rounded up to a multiple of 128."""
        return -(-self.vocab // PADDING) * PADDING

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.hidden // self.heads
