"""What `/v1/completions` takes: OpenAI's fields, and `top_k`."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

TEXTS = {"type": "array", "items": {"type": "string"}}
TOKENS = {"type": "array", "items": {"type": "integer"}}


def _prompt(value: Any) -> list[str] | list[list[int]]:
    """One list of texts, or of lists of token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if all(_is_id(item) for item in value):
            return [value]
        if all(isinstance(item, list) and item and all(map(_is_id, item)) for item in value):
            return value
    raise ValueError("give a text, a list of texts, a list of token ids, or a list of such lists; none empty")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _stop(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if isinstance(texts, list) and len(texts) <= 16 and all(isinstance(s, str) and 0 < len(s) <= 1000 for s in texts):
        return tuple(texts)
    raise ValueError("give a text or a list of up to 16 texts, each of 1 to 1,000 characters")


class StreamOptions(BaseModel):
    """What a stream brings beside the text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    """End with a chunk that counts the tokens."""


class CompletionRequest(BaseModel):
    """A request as OpenAI's clients send it. What this server cannot do is refused where it would change the answer."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)

    model: str | None = Field(None, max_length=1000)
    """A name that /v1/models lists; there is one model, so it may be left out."""
    prompt: Annotated[
        Any,
        PlainValidator(_prompt),
        WithJsonSchema({"anyOf": [{"type": "string"}, TEXTS, TOKENS, {"type": "array", "items": TOKENS}]}),
    ]
    """Text, list of texts, token ids, or list of such lists. An empty text begins a new document."""
    max_tokens: int | None = Field(16, ge=0)
    """Tokens to generate; with the prompt no more than the model's context. 0 with `echo` and `logprobs`
    only scores."""
    temperature: float | None = Field(1.0, ge=0, le=100)
    """Divides the logits; 0 always takes the most likely token."""
    top_p: float | None = Field(1.0, ge=0, le=1)
    """Draw among the fewest tokens whose probabilities reach this sum; 0 always takes the most likely token."""
    top_k: int | None = Field(0, ge=0)
    """Draw among the k most likely tokens; 0 means all. OpenAI has no such field."""
    n: int | None = Field(1, ge=1)
    """Continuations of each prompt."""
    best_of: int | None = Field(None, ge=1)
    """Only what `n` says."""
    stream: bool | None = False
    """Send the text as it comes, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Only with `stream`."""
    logprobs: int | None = Field(None, ge=0, le=100)
    """Say the log-probability of each token, and of so many of the most likely ones there."""
    echo: bool | None = False
    """Give the prompt back before the continuation."""
    stop: Annotated[
        Any, PlainValidator(_stop), WithJsonSchema({"anyOf": [{"type": "string"}, TEXTS, {"type": "null"}]})
    ] = ()
    """Strings before which the text ends."""
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    """The same request with the same seed gets the same answer, whoever else is served; chosen by chance where not
    given."""
    suffix: Literal[""] | None = None
    """Not offered."""
    presence_penalty: float | None = Field(0, ge=0, le=0)
    """Not offered: 0."""
    frequency_penalty: float | None = Field(0, ge=0, le=0)
    """Not offered: 0."""
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    """Not offered: empty."""
    user: str | None = Field(None, max_length=1000)
    """Taken and not used."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, given: Any) -> Any:
        """null stands for the default, as OpenAI has it."""
        if isinstance(given, dict):
            return {name: value for name, value in given.items() if value is not None}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of: only what n says ({self.n}) is offered")
        if self.stream_options and not self.stream:
            raise ValueError("stream_options: only with stream")
        return self
