"""Which split a document belongs to, decided by a seeded hash of its text.

Neither the order of documents nor the number of workers moves one from train to test, and equal texts always land in
the same split.
"""

import hashlib
from typing import Literal, Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings

Split = Literal["train", "valid", "test"]


class SplitSettings(Settings):
    """Shares of the documents; train takes what valid and test leave."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Another seed gives another, independent split."""
    valid: float = Field(0.05, ge=0, le=1)
    """Share of the documents that validation gets."""
    test: float = Field(0.05, ge=0, le=1)
    """Share of the documents that are held out for the evaluation."""

    @model_validator(mode="after")
    def _leave_some_to_train(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid {self.valid:g} + test {self.test:g} leave nothing to train; give less than 1 together"
            )
        return self


def split_of(text: str, settings: SplitSettings) -> Split:
    """The split of a text: a 64-bit keyed BLAKE2b of its UTF-8 bytes, read as a number in [0, 1)."""
    key = settings.seed.to_bytes(8, "little")
    point = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()) / 2**64
    if point < settings.test:
        return "test"
    return "valid" if point < settings.test + settings.valid else "train"
