"""Settings of the cloze set."""

from typing import Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings


class ClozeSettings(Settings):
    """Length and number of the passages."""

    min_words: int = Field(30, ge=5)
    """Minimum words of a passage."""
    max_words: int = Field(110, le=1000)
    """Maximum words of a passage."""
    per_document: int = Field(20, ge=1)
    """Maximum passages of a document."""
    max_passages: int = Field(400, ge=1)
    """Maximum passages of the set."""
    max_copies: int = Field(3, ge=0)
    """Skip a passage that shares 13 words with more documents outside the test split than this: it is a common phrase,
    which the decontamination would cut out of all of them."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the draw if there are more passages than needed."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_words < self.min_words:
            raise ValueError(f"max_words {self.max_words} is below min_words {self.min_words}")
        return self
