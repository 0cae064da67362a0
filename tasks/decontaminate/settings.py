"""Settings of the decontamination."""

from typing import Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings


class DecontaminateSettings(Settings):
    """Rules for matching passages of evaluation sets, and for cutting them out."""

    ngram: int = Field(13, ge=2, le=50)
    """Words per n-gram."""
    min_ngram: int = Field(8, ge=2, le=50)
    """An evaluation text with fewer than `ngram` words is one n-gram if it has at least this many, else ignored."""
    margin: int = Field(200, ge=0)
    """Characters cut on each side of a match, before the cut is extended to the next sentence end."""
    min_piece: int = Field(200, ge=0)
    """Minimum characters of a text between cuts; shorter ones are dropped."""
    max_cuts: int = Field(10, ge=0)
    """Maximum cuts in a document; with more it is dropped."""
    key_threshold: int = Field(0, ge=0)
    """Keep n-grams that occur this often in the corpus as common phrases (Megatron: 10). 0, the default, removes all
    n-grams: otherwise an evaluation passage that is copied often enough would remain in the training text."""
    against: tuple[str, ...] = ()
    """Further evaluation sets (WikiText, a benchmark of your own): files, globs, folders or fsspec URLs of .jsonl,
    .parquet, .arrow and plain text, compressed (.gz .bz2 .xz .zst) or not."""
    key: str = "text"
    """Column, or key of each JSON line, of the passage in the files of `against`."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is more than ngram {self.ngram}; give at most that value")
        return self
