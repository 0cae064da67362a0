"""Settings of sampling, beam search and layout, apart from their code so that `--help` does not load torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from gpt2train.settings import Settings

StopString = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class SamplingSettings(Settings):
    """Sampling of the next token and end of a continuation. The defaults sample from the model's distribution."""

    max_new_tokens: int = Field(64, ge=0)
    """Maximum number of tokens to generate per prompt; 0 only scores the prompt (`prompt_log_probs`)."""
    temperature: float = Field(1.0, ge=0, le=100)
    """Divisor of the logits; 0 always takes the most likely token."""
    top_k: int = Field(0, ge=0)
    """Sample among the k most likely tokens; 0 means all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample among the smallest set of tokens whose probabilities add up to this (nucleus sampling)."""
    top_p_decay: float = Field(1.0, gt=0, le=1)
    """Factor applied to top_p after every token."""
    top_p_bound: float = Field(0.0, ge=0, le=1)
    """Lower bound of the decayed top_p."""
    seed: int = Field(0, ge=0)
    """Random seed. Every sample of every prompt has its own random stream, given by the prompt's index."""
    samples: int = Field(1, ge=1, le=128)
    """Continuations per prompt."""
    stop: tuple[StopString, ...] = Field((), max_length=16)
    """Strings that end a continuation; the text ends before them."""
    stop_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=16)
    """Token ids that end a continuation, in addition to `<|endoftext|>`; they are not part of its text."""
    prevent_newline_after_colon: bool = False
    """Never sample a newline right after a colon."""
    log_probs: bool = False
    """Return the log-probability of every generated token under the model's distribution at temperature 1."""
    prompt_log_probs: bool = False
    """Return the log-probability of every prompt token after the first."""
    top_log_probs: int = Field(0, ge=0, le=100)
    """Return this number of most likely tokens at each position, with their log-probabilities."""
    window: int = Field(0, ge=0)
    """Tokens to free when the context is full: the latest tokens that remain are read again, as if the text began
    there. 0: a prompt that fills the context is refused, and a continuation ends at the end of the context."""

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature == 0 or self.top_k == 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_p_bound > self.top_p:
            raise ValueError(f"top_p_bound {self.top_p_bound} is above top_p {self.top_p}; lower it")
        if self.max_new_tokens == 0 and not self.prompt_log_probs:
            raise ValueError("max_new_tokens is 0 and prompt_log_probs is off: nothing to do; set one of them")
        if self.top_log_probs and not (self.log_probs or self.prompt_log_probs):
            raise ValueError("top_log_probs needs log_probs or prompt_log_probs")
        return self


class BeamSettings(Settings):
    """Beam search for the most likely continuations."""

    beams: int = Field(4, ge=1, le=128)
    """Number of beams, and of continuations returned."""
    length_penalty: float = Field(1.0, ge=-10, le=10)
    """Exponent of the length: score = sum of log-probabilities / length ** length_penalty. Above 0, long ones gain."""
    early_stopping: bool | Literal["never"] = False
    """End of the search. true: as soon as `beams` beams have finished. false: once the best unfinished beam, scored at
    its present length, is worse than all of them. never: once it is worse at any length that it can reach."""
    max_new_tokens: int = Field(64, ge=1)
    """Maximum number of tokens to generate."""
    stop_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=16)
    """Token ids that end a beam, in addition to `<|endoftext|>`."""


class ServingLayout(Settings):
    """Parallel layout of a model for inference; `tp` x `pp` processes are started."""

    tp: int = Field(1, ge=1)
    """Tensor-parallel degree, at most the attention heads; must divide 128, to which the vocabulary is padded."""
    pp: int = Field(1, ge=1)
    """Pipeline stages, each with consecutive layers."""
    peer_timeout: float = Field(60.0, ge=0.1, le=86_400)
    """Seconds without a heartbeat after which a process counts as lost. It must exceed the longest call, which reads
    one or a few prompts. The end of a process is noticed at once, without this timeout."""

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.tp * self.pp
