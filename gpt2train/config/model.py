"""Model shape settings."""

from operator import not_

from pydantic import Field, model_validator

from gpt2train.settings import NaturalNumber, Settings


class ModelSettings(Settings):
    """Shape of the GPT-2 model. The vocabulary size comes from the tokenizer of the data."""

    layers: int = Field(12, ge=1, le=10_000)
    """Transformer blocks."""
    heads: int = Field(12, ge=1, le=2**16)
    """Attention heads; must divide `hidden`."""
    hidden: int = Field(768, ge=1, le=2**18)
    """Width of the residual stream."""
    context: int = Field(1024, ge=2, le=2**24)
    """Length of a training sample in tokens, and the context length of the model unless `max_positions` is larger."""
    max_positions: NaturalNumber = Field(0, exclude_if=not_)
    """Rows of the position embedding, the context length of the trained model, if other than `context` (Megatron-LM's
    `--max-position-embeddings`). Rows above `context` are not trained. 0: `context`."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on embeddings, attention and both residual branches, as published; 0 is best for few epochs."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSettings":
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self

    @model_validator(mode="after")
    def _positions_suffice(self) -> "ModelSettings":
        if 0 < self.max_positions < self.context:
            raise ValueError(f"max_positions {self.max_positions} is below context {self.context}; raise it, or set 0")
        return self

    @property
    def positions(self) -> int:
        """Rows of the position embedding."""
        return self.max_positions or self.context
