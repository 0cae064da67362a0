"""Response models of the API, for its OpenAPI description; tests compare real responses with them."""

from typing import Literal

from pydantic import BaseModel

from gpt2train.runs.documents import DESCRIBED
from gpt2train.runs.text_trace import TracedPlace


class Answer(BaseModel):
    """Base of every response; all fields are always present."""

    model_config = DESCRIBED


class LogProbs(Answer):
    """Lists of equal length, with one item per token."""

    tokens: list[str]
    """Text of each token; `bytes:\\xe2\\x80` for one that is not a whole character."""
    token_logprobs: list[float | None]
    """Natural log-probability of each token; null for the first token of a text."""
    top_logprobs: list[dict[str, float] | None] | None
    """Most likely tokens at each position; null if `logprobs` is 0."""
    text_offset: list[int]
    """Characters of the text before each token."""


class Choice(Answer):
    """One continuation."""

    index: int
    """Index of the prompt x `n` + index of the continuation."""
    text: str
    logprobs: LogProbs | None
    finish_reason: Literal["stop", "length"] | None
    """`stop` at `<|endoftext|>` or a stop string; null in a stream before the end."""


class Usage(Answer):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Answer):
    """Response of /v1/completions; in a stream, each event but the last has these fields."""

    id: str
    object: Literal["text_completion"]
    created: int
    """Seconds since 1970."""
    model: str
    choices: list[Choice]
    usage: Usage


class TokenChance(Answer):
    """Token of an answer."""

    token: str
    """Text of the token; `bytes:\\xe2\\x80` for one that is not a whole character."""
    logprob: float
    """Natural log-probability."""
    bytes: list[int]


class ScoredToken(TokenChance):
    """Token of an answer, and the most likely ones at its position."""

    top_logprobs: list[TokenChance]


class AnswerLogProbs(Answer):
    """Tokens of an answer, without the one that ends it."""

    content: list[ScoredToken]


class AnswerMessage(Answer):
    """Message of the assistant."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Answer):
    """One answer; in a stream, `delta` has what is new of the message."""

    index: int
    message: AnswerMessage
    logprobs: AnswerLogProbs | None
    finish_reason: Literal["stop", "length"] | None
    """`stop` at the token that ends an answer, or at a stop string; null in a stream before the end."""


class ChatCompletion(Answer):
    """Response of /v1/chat/completions; in a stream, each event but the last has these fields."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Seconds since 1970."""
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Model(Answer):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    """Start of the server, in seconds since 1970."""
    owned_by: str
    max_model_len: int
    """Context length in tokens, of prompt and continuation together."""
    parameters: int
    """Number of parameters of the model."""
    chat: bool
    """True if this server has /v1/chat/completions: the model has a chat template."""
    indexed_tokens: int | None
    """Number of training tokens that /v1/trace searches; null if this server has no such path."""


class ModelList(Answer):
    """List of the one served model."""

    object: Literal["list"]
    data: list[Model]


class Texts(Answer):
    """Response of /api."""

    text: list[str]
    """Prompt and continuation, for each prompt."""
    segments: list[list[str]]
    """Tokens of each text."""
    logprobs: list[list[float]] | None
    """Log-probability of each token after the first; null without `logprobs`."""


class Beams(Answer):
    """Response of /api with `beam_width`, best beam first."""

    text: list[str]
    segments: list[list[str]]
    scores: list[float]


class TracedText(Answer):
    """Longest span of a text that occurs in the training tokens."""

    start: int
    """First token of the span in the text."""
    end: int
    text: str
    characters: tuple[int, int] | None
    """Start and end in the text, in Unicode characters; null if the tokenizer changes texts."""
    count: int
    """Occurrences in the training tokens."""
    places: list[TracedPlace]
    """The first occurrences."""


class Traced(Answer):
    """Response of /v1/trace."""

    tokens: int
    """Tokens of the text."""
    min_tokens: int
    covered: int
    """Tokens of the text in at least one span."""
    indexed_tokens: int
    spans: list[TracedText]


class Health(Answer):
    """State of the server."""

    status: Literal["ok", "stuck", "failed", "ending"]
    model: str
    rows: int
    """Decoder rows in use."""
    waiting: int
    """Sequences that wait for a row."""


class Message(BaseModel):
    """An error outside of /v1."""

    message: str


class ErrorDetail(Answer):
    """Error message with its type, field and code."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "not_found_error", "server_error"]
    param: str | None
    """Name of the wrong field; null if no single field is wrong."""
    code: Literal["context_length_exceeded", "invalid_api_key", "model_not_found"] | None
    """OpenAI's code of the error; null for any other."""


class OpenAIError(BaseModel):
    """An error under /v1."""

    error: ErrorDetail
