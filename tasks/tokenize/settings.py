"""Settings of the tokenisation."""

from typing import Literal

from pydantic import AliasChoices, Field

from gpt2train.settings import Settings


class TokenizeSettings(Settings):
    """Settings of the token files and of the encoder."""

    append_end_of_text: bool = Field(True, validation_alias=AliasChoices("append_end_of_text", "append_eod"))
    """Append `<|endoftext|>` to each document, so that the model learns the end of a text (Megatron's --append-eod)."""
    prepend_bos: bool = True
    """Begin each document with what the tokenizer's template puts before a text (`<s>` of Llama 2), since prompts begin
    so too. GPT-2's tokenizer, and one that is trained here, put nothing."""
    shard_tokens: int = Field(default=1 << 30, ge=1)
    """Maximum tokens per file; a larger split is divided between documents (2^30 tokens are 2 GB of uint16)."""
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    """Library of the encoder; the tokens are the same. `auto`: gigatoken if it is installed and agrees with
    `tokenizers` on a sample of the corpus, else `tokenizers`. `gigatoken`: the same, but fail instead of falling back.
    `tokenizers`: the reference."""
