"""`/v1/completions` and `/v1/models`, as OpenAI's clients expect them."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gpt2train.generate.sequence import TokenScore
from gpt2train.generate.settings import SamplingSettings
from gpt2train.generate.text import TextStream
from gpt2train.serve.batcher import Ticket
from gpt2train.serve.completions import CompletionRequest
from gpt2train.serve.errors import Refusal, error_body
from gpt2train.serve.events import EventStream
from gpt2train.serve.jobs import Continuation
from gpt2train.serve.service import Service, continuation, finish, leave, news_of, seed_of, submit

SCORES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
# Python's splitlines, and clients that use it on a stream, take these for the end of a line; JSON does not.
LINE_ENDS = {ord(letter): f"\\u{ord(letter):04x}" for letter in "\x85\u2028\u2029"}
REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


def openai_routes(service: Service) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [_model(service)]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The model of that name."""
        _check_model(service, name)
        return _model(service)

    @router.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        _check_model(service, body.model)
        prompts = await _prompts(service, body)
        jobs = _jobs(service, body, prompts)
        answer = _Answer(service, body, prompts, jobs)
        if body.stream:
            ticket = submit(service, jobs)
            limit = service.settings.deadline + service.settings.body_seconds
            return EventStream(answer.events(ticket), lambda: leave(service, ticket), limit)
        await finish(service, jobs, request)
        return JSONResponse(answer.whole())

    return router


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.name,
        "object": "model",
        "created": service.started,
        "owned_by": "gpt2train",
        "max_model_len": service.context,
    }


def _check_model(service: Service, name: str | None) -> None:
    if name not in (None, service.name):
        raise Refusal(404, f"no model of that name is served here; its name is {service.name!r}", "model")


async def _prompts(service: Service, body: CompletionRequest) -> list[list[int]]:
    """Token ids of every prompt, none empty, all within the limits."""
    limits, new, samples = service.settings, body.max_tokens or 0, body.n or 1
    if len(body.prompt) * samples > limits.max_sequences:
        raise Refusal(400, f"prompt: {len(body.prompt)} x n {samples} is above {limits.max_sequences}", "prompt")
    if isinstance(body.prompt[0], str):
        prompts = [ids or [service.end] for ids in await service.encode(body.prompt, "prompt")]
    else:
        prompts = body.prompt
        vocab = service.batcher.decoder.shape.vocab
        if max(map(max, prompts)) >= vocab:
            raise Refusal(400, f"prompt: token ids go up to {vocab - 1}", "prompt")
    for prompt in prompts:
        if len(prompt) + new > service.context:
            raise Refusal(
                400,
                f"the model's context is {service.context} tokens, the prompt has {len(prompt)} and max_tokens is "
                f"{new}; shorten one of them",
                "prompt" if len(prompt) >= service.context else "max_tokens",
            )
    total = sum(len(prompt) + new for prompt in prompts) * samples
    if total > limits.max_tokens:
        raise Refusal(400, f"prompt: {total} tokens with n and max_tokens, {limits.max_tokens} are allowed", "prompt")
    return prompts


def _jobs(service: Service, body: CompletionRequest, prompts: Sequence[Sequence[int]]) -> list[Continuation]:
    scored = body.logprobs is not None
    settings = SamplingSettings(
        max_new_tokens=body.max_tokens or 0,
        temperature=body.temperature,
        top_k=1 if body.top_p == 0 else body.top_k,
        top_p=body.top_p or 1.0,
        stop=body.stop,
        seed=seed_of(body.seed),
        log_probs=scored,
        prompt_log_probs=(scored and bool(body.echo)) or not body.max_tokens,
        top_log_probs=body.logprobs or 0,
    )
    return [
        continuation(service, prompt, settings, place, sample, bool(body.stream))
        for place, prompt in enumerate(prompts)
        for sample in range(body.n or 1)
    ]


class _Answer:
    """The answer to one request, whole or in pieces."""

    def __init__(
        self, service: Service, body: CompletionRequest, prompts: list[list[int]], jobs: list[Continuation]
    ) -> None:
        self.service, self.body, self.prompts, self.jobs = service, body, prompts, jobs
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }
        self.ends = [TextStream(service.tokenizer) for _ in jobs]  # where the next token's text begins
        self.begun: set[int] = set()

    def whole(self) -> dict[str, Any]:
        """Everything at once."""
        choices = []
        for number, job in enumerate(self.jobs):
            sequence = job.sequence
            text, scores = self._begin(number)
            _extend(scores, self._scores(number, sequence.tokens, sequence.scores))
            choices.append(self._choice(number, text + sequence.text, scores, REASONS[sequence.finished or "length"]))
        return {**self.head, "choices": choices, "usage": self._usage()}

    async def events(self, ticket: Ticket) -> AsyncGenerator[str, None]:
        """Server-sent events; the last is `[DONE]`, or an error."""
        try:
            async for number, news in news_of(self.service, ticket):
                text, scores = self._begin(number)
                if news is not None:
                    text += news.text
                    _extend(scores, self._scores(number, news.tokens, news.scores))
                finished = REASONS[self.jobs[number].sequence.finished or "length"] if news is None else None
                if text or finished or (scores and scores["tokens"]):
                    yield _event({**self.head, "choices": [self._choice(number, text, scores, finished)]})
            if self.body.stream_options and self.body.stream_options.include_usage:
                yield _event({**self.head, "choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        except Refusal as refusal:
            yield _event(error_body("/v1", refusal.status, refusal.message))

    def _begin(self, number: int) -> tuple[str, dict[str, list[Any]] | None]:
        """What stands before the continuation, the first time: nothing without `echo`."""
        scores: dict[str, list[Any]] | None = None if self.body.logprobs is None else {name: [] for name in SCORES}
        if not self.body.echo or number in self.begun:
            return "", scores
        self.begun.add(number)
        place = number // (self.body.n or 1)
        prompt, given = self.prompts[place], self.body.prompt[place]
        text = given if isinstance(given, str) else self.service.tokenizer.decode(prompt, skip_special_tokens=False)
        if scores is not None:
            own = self.jobs[number].sequence.prompt_scores
            _extend(scores, self._scores(number, prompt, [None, *own]))
        return text, scores

    def _scores(
        self, number: int, tokens: Sequence[int], scores: Sequence[TokenScore | None]
    ) -> dict[str, list[Any]] | None:
        """OpenAI's four lists about some tokens of a choice. The first token of a text has no probability."""
        if self.body.logprobs is None:
            return None
        found: dict[str, list[Any]] = {name: [] for name in SCORES}
        name = self.service.token_name
        for token, score in zip(tokens, scores, strict=True):
            found["tokens"].append(name(token))
            found["text_offset"].append(len(self.ends[number].text))
            self.ends[number].add(token)
            found["token_logprobs"].append(score and score.log_prob)
            found["top_logprobs"].append(score and {name(other): value for other, value in score.top})
        return found

    def _choice(self, number: int, text: str, scores: Any, finished: str | None) -> dict[str, Any]:
        if scores is not None and not self.body.logprobs:
            scores = scores | {"top_logprobs": None}
        return {"index": number, "text": text, "logprobs": scores, "finish_reason": finished}

    def _usage(self) -> dict[str, int]:
        read = sum(map(len, self.prompts))  # once each, whatever n is
        made = sum(len(job.sequence.tokens) for job in self.jobs)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def _extend(scores: dict[str, list[Any]] | None, more: dict[str, list[Any]] | None) -> None:
    if scores is not None and more is not None:
        for name in SCORES:
            scores[name] += more[name]


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False).translate(LINE_ENDS)}\n\n"
