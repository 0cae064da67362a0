"""Settings of the tokenizer."""

from operator import not_
from typing import Literal, Self

from pydantic import Field, model_validator

from gpt2train.settings import Place, Settings

BYTE_TOKENS = 256  # initial tokens of every byte-level vocabulary


class TokenizerSettings(Settings):
    """Source of the tokenizer, and parameters of its training."""

    name: Literal["train", "gpt2", "folder"] = "train"
    """`train`: train one on the train split. `gpt2`: the published vocabulary of 50,257 tokens. `folder`: the tokenizer
    in `folder`, of any kind and size."""
    algorithm: Literal["byte_bpe", "sentencepiece_unigram", "sentencepiece_bpe"] = "byte_bpe"
    """Kind of a trained tokenizer: byte-level BPE as GPT-2's, or a SentencePiece model with bytes for rare characters
    (needs `pip install 'gpt2train[sentencepiece]'`)."""
    vocab_size: int = Field(default=4096, ge=BYTE_TOKENS + 1, le=2**20)
    """Tokens of a trained vocabulary including the one that ends a text; fewer if there are no more pairs to merge."""
    min_frequency: int = Field(default=2, ge=1)
    """Minimum occurrences of a pair to be merged by `byte_bpe`."""
    sample_characters: int = Field(default=200_000_000, ge=1)
    """Maximum characters of documents used for training, in the order of the shards."""
    sentinels: int = Field(default=0, ge=0, le=2**16, exclude_if=not_)
    """Tokens `<extra_id_0>`, `<extra_id_1>` … at the end of the vocabulary, the first one last, and `<pad>` before
    them: the sentinels of span corruption (docs/train/t5.md). They count in `vocab_size`, and are added to `gpt2`."""
    folder: Place | None = None
    """Folder or URL (hf://ORG/NAME of a model of the hub) with tokenizer.json, with vocab.json and merges.txt, with
    tokenizer.model or with vocab.txt; or one of these files on this machine. Required for `folder`; for `gpt2` the
    published files are downloaded if it is not given."""

    @model_validator(mode="after")
    def _folder_is_used(self) -> Self:
        if self.name == "folder" and not self.folder:
            raise ValueError("name = 'folder' needs folder, with the files of your tokenizer")
        if self.name == "train" and self.folder:
            raise ValueError(
                "folder is given, but name = 'train' trains a tokenizer; for its files set name = 'folder'"
            )
        if self.name != "train" and self.algorithm != "byte_bpe":
            raise ValueError(f"algorithm is of a trained tokenizer, but name = '{self.name}' trains none; leave it out")
        if self.sentinels and (self.name == "folder" or self.algorithm != "byte_bpe"):
            kind = "your own" if self.name == "folder" else f"algorithm {self.algorithm}"
            raise ValueError(f"sentinels can be added to gpt2 and to byte_bpe, not to {kind}; leave it out")
        if self.name == "train" and self.sentinels and self.vocab_size < BYTE_TOKENS + 2 + self.sentinels:
            raise ValueError(
                f"vocab_size {self.vocab_size} is too small for {BYTE_TOKENS} bytes and {self.sentinels} sentinels; "
                f"give at least {BYTE_TOKENS + 2 + self.sentinels}"
            )
        return self
