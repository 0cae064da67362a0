"""Settings of the tokenizer."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings

BYTE_TOKENS = 256  # initial tokens of every byte-level vocabulary


class TokenizerSettings(Settings):
    """Source of the tokenizer, and parameters of its training."""

    name: Literal["train", "gpt2", "folder"] = "train"
    """`train`: train a byte-level BPE on the train split. `gpt2`: the published vocabulary of 50,257 tokens. `folder`:
    the byte-level BPE of any size in `folder`."""
    vocab_size: int = Field(default=4096, ge=BYTE_TOKENS + 1, le=2**20)
    """Tokens of a trained vocabulary including `<|endoftext|>`; fewer if there are no more pairs to merge."""
    min_frequency: int = Field(default=2, ge=1)
    """Minimum occurrences of a pair to be merged."""
    sample_characters: int = Field(default=200_000_000, ge=1)
    """Maximum characters of documents used for training, in the order of the shards."""
    folder: str | None = None
    """Folder or URL with vocab.json and merges.txt, or with tokenizer.json alone. Required for `folder`; for `gpt2` the
    published files are downloaded if it is not given."""

    @model_validator(mode="after")
    def _folder_is_used(self) -> Self:
        if self.name == "folder" and not self.folder:
            raise ValueError("name = 'folder' needs folder, with the vocab.json and merges.txt of your tokenizer")
        if self.name == "train" and self.folder:
            raise ValueError(
                "folder is given, but name = 'train' trains a tokenizer; to use its files set name = 'folder'"
            )
        return self
