"""The shape of the GPT-2."""

from pydantic import Field, PositiveInt, model_validator

from gpt2train.settings import Settings


class ModelSettings(Settings):
    """The shape of the GPT-2. The vocabulary comes with the data."""

    layers: PositiveInt = 12
    """Transformer blocks."""
    heads: PositiveInt = 12
    """Attention heads; must divide `hidden`."""
    hidden: PositiveInt = 768
    """Width of the residual stream."""
    context: int = Field(1024, ge=2)
    """Tokens that the model sees at once, and the length of a training sample."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on embeddings, attention and both residual branches, as published; 0 is best for few epochs."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSettings":
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self
