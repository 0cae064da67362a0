"""Assignment of documents to splits by a seeded hash of the text.

The split of a document depends neither on the order of the documents nor on the number of workers, and equal texts are
always in the same split.
"""

import hashlib
from typing import Literal, Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings

Split = Literal["train", "valid", "test"]


class SplitSettings(Settings):
    """Shares of the splits; the train split has the documents that are in neither of the others."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the assignment; another seed gives an independent one."""
    valid: float = Field(0.05, ge=0, le=1)
    """Share of the documents in the validation split."""
    test: float = Field(0.05, ge=0, le=1)
    """Share of the documents in the test split, held out for the evaluation."""

    @model_validator(mode="after")
    def _train_not_empty(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid {self.valid:g} + test {self.test:g} leave no documents to train on; their sum must be below 1"
            )
        return self


def split_of(text: str, settings: SplitSettings) -> Split:
    """Split of a text, by a 64-bit keyed BLAKE2b of its UTF-8 bytes, read as a number in [0, 1)."""
    key = settings.seed.to_bytes(8, "little")
    point = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()) / 2**64
    if point < settings.test:
        return "test"
    return "valid" if point < settings.test + settings.valid else "train"
