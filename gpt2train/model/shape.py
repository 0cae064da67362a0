"""Sizes of a model, separate from the model so that settings and commands need not import torch (1-2 s)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PADDING = 128  # fast for matrix kernels, and the same sizes on all layouts of up to 128 tensor-parallel ranks
# Rows of logits in memory at a time. On a CPU they should fit the cache: at a vocabulary of 50,304 and a width of 384,
# 256 rows take 1.36 s, 1,024 take 1.45 s and 64 take 1.65 s. On a GPU large matrices are faster.
LOGIT_CHUNK = {"cpu": 256, "cuda": 2_048}
# The same of compiled code on a GPU, which has logits and their gradient in half precision, 3.3 GB together. The
# product for the gradient of 16,384 hidden states of width 768 has 384 tiles of 128 x 256, three times the 132
# multiprocessors of an H100 but for 12; that of 8,192 has 192 (or 384 smaller and slower ones), that of 2,048 has 48.
COMPILED_CHUNK = 16_384

Option = bool | int | float | str
Sizes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Shape:
    """Sizes that determine the parameters of a model.

    `padded_vocab` is `vocab` rounded up to a multiple of 128, for matrix kernels and tensor-parallel shards. The rows
    above `vocab` are never a target, are excluded from the loss, and are cut off on export.

    Attributes:
        family: name in the registry of model families (`gpt2train.model.families`).
        options: settings that only this family has, as pairs of name and value.
        labels: classes of a sequence classifier, whose output layer `score` takes the place of the output projection;
            0 for a language model.
    """

    vocab: int
    layers: int
    heads: int
    hidden: int
    context: int
    family: str = "gpt2"
    options: tuple[tuple[str, Option], ...] = ()
    labels: int = 0

    def __post_init__(self) -> None:
        """Raise a ValueError for an option that cannot be hashed, or written to TOML and JSON."""
        for name, value in self.options:
            if not isinstance(value, Option):
                place = f"option {name} of the model family {self.family}"
                raise ValueError(f"{place} is {value!r}: a number, a string or a boolean expected")

    @property
    def padded_vocab(self) -> int:
        """Rows of the token embedding: `vocab` rounded up to a multiple of 128."""
        return -(-self.vocab // PADDING) * PADDING

    @property
    def head_dim(self) -> int:
        """Size of an attention head: `hidden / heads`, unless the family has an option `head_dim`."""
        return int(dict(self.options).get("head_dim", 0)) or self.hidden // self.heads


def all_blocks(block: Sizes, layers: int) -> Sizes:
    """Sizes of the parameters of all blocks, which are equal, from those of one."""
    return {f"blocks.{layer}.{name}": size for layer in range(layers) for name, size in block.items()}


def pad_vocabulary(rows: "Tensor", total: int) -> "Tensor":
    """Pad the vocabulary to `total` rows by repeating the last row.

    Megatron-LM's softmax includes the padding rows. A row of zeros would have the logit 0, far above those of real
    tokens in a trained GPT-2 (OpenAI's are around -35 and lower); a copy has the logit of a rare token.
    """
    if total <= len(rows):
        return rows
    padded = rows.new_empty((total, *rows.shape[1:]))
    padded[: len(rows)], padded[len(rows) :] = rows, rows[-1]
    return padded
