"""Model shape settings."""

from pydantic import Field, model_validator

from gpt2train.settings import Settings


class ModelSettings(Settings):
    """Shape of the GPT-2 model. The vocabulary size comes from the tokenizer of the data."""

    layers: int = Field(12, ge=1, le=10_000)
    """Transformer blocks."""
    heads: int = Field(12, ge=1, le=2**16)
    """Attention heads; must divide `hidden`."""
    hidden: int = Field(768, ge=1, le=2**18)
    """Width of the residual stream."""
    context: int = Field(1024, ge=2, le=2**24)
    """Context length in tokens, which is also the length of a training sample."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on embeddings, attention and both residual branches, as published; 0 is best for few epochs."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSettings":
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self
