"""How a continuation is made: the settings alone, so that commands can show them without loading torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from gpt2train.settings import Settings

StopString = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class SamplingSettings(Settings):
    """How the next token is drawn and when a continuation ends. The defaults sample from the model's distribution."""

    max_new_tokens: int = Field(64, ge=0)
    """Tokens to generate for each prompt, at most; 0 only scores the prompt (`prompt_log_probs`)."""
    temperature: float = Field(1.0, ge=0, le=100)
    """Divides the logits; 0 always takes the most likely token."""
    top_k: int = Field(0, ge=0)
    """Draw among the k most likely tokens; 0 means all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Draw among the fewest tokens whose probabilities reach this sum."""
    top_p_decay: float = Field(1.0, gt=0, le=1)
    """Multiplies top_p after every token drawn."""
    top_p_bound: float = Field(0.0, ge=0, le=1)
    """What the decay does not take top_p below."""
    seed: int = Field(0, ge=0)
    """Seed of the draws; each prompt, and each sample of it, has a stream of its own, by its place in the list."""
    samples: int = Field(1, ge=1, le=128)
    """Continuations of each prompt."""
    stop: tuple[StopString, ...] = Field((), max_length=16)
    """Strings that end a continuation; the text is cut before them."""
    stop_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=16)
    """Token ids that end a continuation, beside `<|endoftext|>`; they are not part of its text."""
    prevent_newline_after_colon: bool = False
    """Never draw a newline right after a colon."""
    log_probs: bool = False
    """Say the log-probability of every generated token, by the model's own distribution at temperature 1."""
    prompt_log_probs: bool = False
    """Say the log-probability of every token of the prompt after its first."""
    top_log_probs: int = Field(0, ge=0, le=100)
    """Say so many of the most likely tokens at each place, with their log-probabilities."""
    window: int = Field(0, ge=0)
    """Tokens to make room for when the context is full: the rest of the latest ones is read again, as if the text
    began there. 0: a prompt that fills the context is refused, and a continuation ends with the context."""

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn at all."""
        return self.temperature == 0 or self.top_k == 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_p_bound > self.top_p:
            raise ValueError(f"top_p_bound {self.top_p_bound} lies above top_p {self.top_p}; give less")
        if self.max_new_tokens == 0 and not self.prompt_log_probs:
            raise ValueError("max_new_tokens is 0 and prompt_log_probs is off: nothing to do; set one of them")
        if self.top_log_probs and not (self.log_probs or self.prompt_log_probs):
            raise ValueError("top_log_probs needs log_probs or prompt_log_probs")
        return self


class BeamSettings(Settings):
    """Beam search: the likeliest continuations rather than drawn ones."""

    beams: int = Field(4, ge=1, le=128)
    """Continuations that are followed side by side, and answers given."""
    length_penalty: float = Field(1.0, ge=-10, le=10)
    """A score is the sum of log-probabilities over length ** length_penalty: above 0 long answers gain."""
    early_stopping: bool | Literal["never"] = False
    """When to end: true at the first `beams` answers; false once the best open one, scored at its present length, falls
    behind them; never once it does so at whatever length it can reach."""
    max_new_tokens: int = Field(64, ge=1)
    """Tokens to generate, at most."""
    stop_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=16)
    """Token ids that end an answer, beside `<|endoftext|>`."""
