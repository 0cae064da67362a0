"""Request model of `/v1/completions`: OpenAI's fields and `top_k`, and others of clients where they have no effect."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, field_validator, model_validator

TEXTS = {"type": "array", "minItems": 1, "items": {"type": "string"}}
TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
TOKEN_LISTS = {"type": "array", "minItems": 1, "items": TOKENS}
STOP = {"type": "string", "minLength": 1, "maxLength": 1000}
STOPS = {"type": "array", "maxItems": 16, "items": STOP}
SCORES = [{"type": "integer", "minimum": 0, "maximum": 100}, {"type": "boolean"}, {"type": "null"}]
PROMPT_KINDS = "give a text, a list of texts, a list of token ids of 0 or more, or a list of such lists; none empty"


def whole(value: Any) -> Any:
    """Convert a float without a fraction to int, as 1.0 is an integer to JSON Schema and JavaScript; keep the rest."""
    return int(value) if type(value) is float and value.is_integer() else value


def _prompt(value: Any) -> list[str] | list[list[int]]:
    """Convert a prompt to a list of texts or of lists of token ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError(PROMPT_KINDS)
    kinds = set(map(type, value))  # up to 4 million ids: loops in C
    if kinds == {str}:
        return value
    if kinds <= {int, float} and value:
        return [_ids(value)]
    if kinds == {list}:
        return [_ids(item, number) for number, item in enumerate(value)]
    if len(kinds) > 1:
        other = next(number for number, item in enumerate(value) if type(item) is not type(value[0]))
        raise ValueError(f"item {other} is of another kind than item 0; {PROMPT_KINDS}")
    raise ValueError(PROMPT_KINDS)


def _ids(value: list[Any], number: int | None = None) -> list[int]:
    value = list(map(whole, value)) if float in set(map(type, value)) else value
    if set(map(type, value)) == {int} and min(value) >= 0:
        return value
    raise ValueError(PROMPT_KINDS if number is None else f"item {number} is no list of token ids; {PROMPT_KINDS}")


def _stop(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if isinstance(texts, list) and len(texts) <= 16 and all(isinstance(s, str) and 0 < len(s) <= 1000 for s in texts):
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise ValueError("a text contains a lone surrogate, which is not a character")
        return tuple(texts)
    raise ValueError("give a text or a list of up to 16 texts, each of 1 to 1,000 characters")


# Fields of OpenAI, vLLM, SGLang, TGI and llama.cpp that this server does not support, with the value without effect,
# which clients send by default.
NEUTRAL: dict[str, Any] = {
    "suffix": "",
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "repeat_penalty": 1,
    "no_repeat_ngram_size": 0,
    "logit_bias": {},
    "min_p": 0,
    "typical_p": 1,
    "top_a": 0,
    "tfs_z": 1,
    "mirostat": 0,
    "xtc_probability": 0,
    "dry_multiplier": 0,
    "dynatemp_range": 0,
    "do_sample": True,
    "use_beam_search": False,
    "num_beams": 1,
    "ignore_eos": False,
    "min_tokens": 0,
    "min_new_tokens": 0,
    "stop_token_ids": [],
    "bad_words": [],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "add_special_tokens": True,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "response_format": {"type": "text"},
    "grammar": "",
    "watermark": False,
}
# Fields without effect on an answer of this server, whatever their value.
IGNORED = (
    "metadata",
    "store",
    "request_id",
    "priority",
    "cache_prompt",
    "cache_salt",
    "length_penalty",  # of beams
    "early_stopping",
    "repeat_last_n",  # of penalties
    "mirostat_tau",
    "mirostat_eta",
    "spaces_between_special_tokens",
)


def _describe_others(schema: dict[str, Any], model: Any) -> None:
    """Begin the JSON schema with the required fields, and add those that are not supported or ignored."""
    required, fields = schema.get("required", ()), schema["properties"]
    schema["properties"] = {name: fields[name] for name in (*required, *fields)}
    for name, value in model.neutral.items():
        about = f"Not supported; only {json.dumps(value)} is accepted."
        schema["properties"][name] = {"enum": [value, None], "default": value, "description": about}
    for name in model.ignored:
        schema["properties"][name] = {"description": "Accepted and ignored."}


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    """End the stream with a chunk of token counts."""
    continuous_usage_stats: Literal[False] = False
    """Not supported; only false is accepted."""
    include_obfuscation: Literal[False] = False
    """Not supported; only false is accepted."""


class SamplingRequest(BaseModel):
    """Fields that requests for texts and for answers share. An unsupported one that changes the answer is refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        json_schema_extra=_describe_others,
    )
    neutral: ClassVar[Mapping[str, Any]] = NEUTRAL  # fields that are not supported, with the value without effect
    ignored: ClassVar[tuple[str, ...]] = IGNORED  # fields without effect

    model: str | None = Field(None, max_length=1000)
    """Name listed by /v1/models; optional, since there is one model."""
    max_tokens: int | None = Field(16, ge=0)
    """Maximum number of tokens to generate; together with the prompt at most the model's context. 0 with `echo` and
    `logprobs` only scores the prompt."""
    temperature: float | None = Field(1.0, ge=0, le=100)
    """Divisor of the logits; 0 always takes the most likely token."""
    top_p: float | None = Field(1.0, ge=0, le=1)
    """Sample among the smallest set of tokens whose probabilities add up to this; 0 always takes the most likely
    token."""
    top_k: int | None = Field(0, ge=-1)
    """Sample among the k most likely tokens; 0 and -1 mean all. OpenAI has no such field."""
    n: int | None = Field(1, ge=1)
    """Continuations per prompt."""
    stream: bool | None = False
    """Send the text while it is generated, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream; only with `stream`."""
    stop: Annotated[Any, PlainValidator(_stop), WithJsonSchema({"anyOf": [STOP, STOPS, {"type": "null"}]})] = ()
    """Stop strings; the text ends before the first one."""
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    """Random seed. The same request with the same seed gets the same answer, whatever else is served; random by
    default."""
    user: str | None = Field(None, max_length=1000)
    """Accepted and ignored."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, given: Any) -> Any:
        """Replace null by the default, as OpenAI does, and leave out what has no effect."""
        if not isinstance(given, dict):
            return given
        given = {name: whole(value) for name, value in given.items() if value is not None and name not in cls.ignored}
        for name in [name for name in given if name in cls.neutral]:
            value, neutral = given.pop(name), cls.neutral[name]
            if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):
                raise ValueError(f"{name}: not supported; leave it out or send {json.dumps(neutral)}")
        return given

    @model_validator(mode="after")
    def _stream_fits(self) -> Self:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options: only with stream")
        return self


class CompletionRequest(SamplingRequest):
    """Request in OpenAI's format. An unsupported option that would change the answer is refused."""

    prompt: Annotated[
        Any, PlainValidator(_prompt), WithJsonSchema({"anyOf": [{"type": "string"}, TEXTS, TOKENS, TOKEN_LISTS]})
    ]
    """Text, list of texts, token ids, or list of lists of token ids. An empty text begins a new document."""
    best_of: int | None = Field(None, ge=1)
    """Must equal `n`."""
    logprobs: Annotated[int | None, WithJsonSchema({"anyOf": SCORES})] = Field(None, ge=0, le=100)
    """Return the log-probability of each token, and of this number of most likely tokens at its position; true for
    one."""
    echo: bool | None = False
    """Return the prompt before the continuation."""

    @field_validator("logprobs", mode="before")
    @classmethod
    def _one_score(cls, scores: Any) -> Any:
        return (1 if scores else None) if isinstance(scores, bool) else scores

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of: must equal n ({self.n})")
        return self
