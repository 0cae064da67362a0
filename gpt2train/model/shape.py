"""The sizes of a GPT-2. Apart from the model, so that settings and commands need not import torch (1-2 s)."""

from dataclasses import dataclass

PADDING = 128  # matrix kernels like it, and it gives every layout of up to 128 tensor-parallel ranks the same sizes


@dataclass(frozen=True)
class Shape:
    """The sizes that fix a GPT-2's parameters.

    `padded_vocab` is `vocab` rounded up to a multiple of 128 so that matrix kernels and tensor-parallel shards divide
    it; the rows above `vocab` are never a target, take no part in the loss, and are cut off on export.
    """

    vocab: int
    layers: int
    heads: int
    hidden: int
    context: int

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab // PADDING) * PADDING

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads
