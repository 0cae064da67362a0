"""How a continuation is drawn: the settings alone, so that commands can show them without loading torch."""

from pydantic import Field

from gpt2train.settings import Settings


class SamplingSettings(Settings):
    """How the next token is drawn. The defaults sample from the model's own distribution."""

    max_new_tokens: int = Field(64, ge=1)
    """Tokens to generate for each prompt, at most; fewer at `<|endoftext|>` or where the model's context ends."""
    temperature: float = Field(1.0, ge=0, le=100)
    """Divides the logits; 0 always takes the most likely token."""
    top_k: int = Field(0, ge=0)
    """Draw among the k most likely tokens; 0 means all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Draw among the fewest tokens whose probabilities reach this sum."""
    seed: int = Field(0, ge=0)
    """Seed of the draws; each prompt has a stream of its own, by its place in the list."""

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn at all."""
        return self.temperature == 0 or self.top_k == 1
