"""Route `/v1/chat/completions`, compatible with OpenAI's clients, for a model with a chat template.

An answer is the completion of the prompt that the template writes: only the form of request and response is another.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from gpt2train.data.chat import Chat
from gpt2train.data.token_bytes import token_bytes
from gpt2train.errors import RunError, UserError
from gpt2train.inference.batch import Continuation
from gpt2train.inference.sequence import TokenScore
from gpt2train.serve.completions import IGNORED, NEUTRAL, CompletionRequest, SamplingRequest
from gpt2train.serve.errors import CONTEXT_EXCEEDED, ApiError, late, wrong_field
from gpt2train.serve.openai import CompletionAnswer, answer, check_model, encoded_prompts, sampling_jobs
from gpt2train.serve.service import Service

PATH = "/v1/chat/completions"
MAX_MESSAGES = 1000
# Fields that the completion shares with this request.
SHARED = ("temperature", "top_p", "top_k", "n", "stream", "stream_options", "seed")


class TextPart(BaseModel):
    """Part of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


# Validated as parts alone: the errors of a union name the branch that failed first, not the part that is wrong.
CONTENT: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": TextPart.model_json_schema()}]}


class ChatMessage(BaseModel):
    """Message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    role: Literal["system", "developer", "user", "assistant"]
    """`developer` is OpenAI's later name of `system`."""
    content: Annotated[list[TextPart], WithJsonSchema(CONTENT)]
    """Text, or parts of it."""
    name: str | None = None
    """Accepted and ignored."""

    @property
    def template_role(self) -> str:
        """Role by the name that chat templates know."""
        return "system" if self.role == "developer" else self.role

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        """Leave out fields without a value, which clients send back with an answer, such as `refusal`."""
        return {key: one for key, one in given.items() if one is not None} if isinstance(given, dict) else given

    @field_validator("content", mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        parts = given if isinstance(given, list) else [given]
        other = next((one.get("type") for one in parts if isinstance(one, dict) and one.get("type") != "text"), None)
        if other is not None:
            raise ValueError(f"a part of the type {str(other)[:40]!r}; the model reads text alone, the type 'text'")
        if not isinstance(given, str | list):
            raise ValueError("a text is expected, or a list of parts of the type 'text'")
        return [{"type": "text", "text": given}] if isinstance(given, str) else given

    @field_validator("content")
    @classmethod
    def _join(cls, content: list[TextPart]) -> str:
        text = "".join(part.text for part in content)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("it contains a lone surrogate, which is not a character")
        return text


class ChatRequest(SamplingRequest):
    """Request for an answer in OpenAI's format. An unsupported option that would change the answer is refused."""

    neutral: ClassVar = {name: value for name, value in NEUTRAL.items() if name != "suffix"} | {
        "tools": [],
        "tool_choice": "none",
        "functions": [],
        "function_call": "none",
        "modalities": ["text"],
        "chat_template_kwargs": {},
        "add_generation_prompt": True,
        "continue_final_message": False,
        "echo": False,
    }
    ignored: ClassVar = (
        *IGNORED,
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
    )

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    """Conversation so far; the model's chat template may refuse an order of roles."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens of the answer; what the context leaves is the default, and the most."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of `max_tokens`."""
    logprobs: bool | None = False
    """Return the log-probability of each token."""
    top_logprobs: int | None = Field(None, ge=0, le=100)
    """Number of most likely tokens to return at each position; only with `logprobs`."""

    @model_validator(mode="after")
    def _fits(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs")
        if self.max_tokens and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens: equal to max_completion_tokens, or leave one out")
        return self


def chat_routes(service: Service, chat: Chat) -> APIRouter:
    """Return the router of `/v1/chat/completions`."""
    router = APIRouter(tags=["OpenAI"])
    turn = asyncio.Lock()  # one thread at a time waits for the template

    @router.post(PATH)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        check_model(service, body.model)
        _check_length(service, body)
        try:
            async with asyncio.timeout(service.settings.deadline), turn:
                ids, ends = await asyncio.to_thread(_encode, chat, body)
        except TimeoutError:
            raise late(service.settings.deadline) from None
        completion = _completion(service, body, ids)
        try:
            prompts = await encoded_prompts(service, completion)
        except ApiError as refusal:
            refusal.field = "messages" if refusal.field == "prompt" else refusal.field
            raise
        jobs = sampling_jobs(service, completion, prompts, ends)
        return await answer(service, ChatAnswer(service, completion, prompts, jobs, ends), request)

    return router


def _check_length(service: Service, body: ChatRequest) -> None:
    """Check that the messages may fit the context, before they are encoded."""
    limit = service.longest_text
    if limit is not None and sum(len(str(one.content).encode()) for one in body.messages) > limit:
        problem = f"they are longer than the model's context of {service.context} tokens"
        raise wrong_field("messages", problem, CONTEXT_EXCEEDED)


def _encode(chat: Chat, body: ChatRequest) -> tuple[list[int], tuple[int, ...]]:
    """Return the prompt of an answer, and the further tokens that end it."""
    try:
        ids = chat.prompt([{"role": one.template_role, "content": one.content} for one in body.messages])
    except UserError as error:
        raise wrong_field("messages", str(error)) from error
    except RunError as error:
        raise ApiError(500, str(error)) from error
    if not ids:
        raise wrong_field("messages", "the chat template writes nothing")
    return ids, () if chat.end is None else (chat.end,)


def _completion(service: Service, body: ChatRequest, ids: list[int]) -> CompletionRequest:
    """Return the request for the completion of a prompt."""
    most = max(1, min(service.context, service.settings.max_tokens // (body.n or 1)) - len(ids))
    shared = {name: getattr(body, name) for name in SHARED}
    new = {"max_tokens": min(body.max_tokens or body.max_completion_tokens or most, most), "stop": list(body.stop)}
    scores = {"logprobs": body.top_logprobs or 0} if body.logprobs else {}
    return CompletionRequest.model_validate({"prompt": [ids], **shared, **new, **scores})


class ChatAnswer(CompletionAnswer):
    """Answer to a conversation, as one body or as a stream.

    Args:
        ends: further tokens that end an answer, and are no part of it.
    """

    kind, number = "chat.completion", "chatcmpl"

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        prompts: list[list[int]],
        jobs: list[Continuation],
        ends: Sequence[int],
    ) -> None:
        super().__init__(service, body, prompts, jobs)
        self.ends = {service.end, *service.stop_tokens, *ends}
        self.begun: set[int] = set()
        if body.stream:
            self.head["object"] += ".chunk"

    def _choice(
        self, number: int, text: str, tokens: Sequence[int], scores: Sequence[TokenScore], finished: str | None
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"content": text} if text or number not in self.begun else {}
        if number not in self.begun:
            said = {"role": "assistant", **said}
            self.begun.add(number)
        scored = None
        if self.body.logprobs is not None:
            pairs = zip(tokens, scores, strict=True)
            scored = {"content": [self._scored(token, score) for token, score in pairs if token not in self.ends]}
        return {
            "index": number,
            "delta" if self.body.stream else "message": said,
            "logprobs": scored,
            "finish_reason": finished,
        }

    def _scored(self, token: int, score: TokenScore) -> dict[str, Any]:
        top = [self._named(other, value) for other, value in score.top]
        return {**self._named(token, score.log_prob), "top_logprobs": top}

    def _named(self, token: int, log_prob: float) -> dict[str, Any]:
        raw = token_bytes(self.service.tokenizer, token)
        return {"token": self.service.token_name(token), "logprob": log_prob, "bytes": list(raw)}

    def _is_empty(self, choice: dict[str, Any]) -> bool:
        return not (choice["delta"] or choice["finish_reason"] or (choice["logprobs"] or {}).get("content"))
