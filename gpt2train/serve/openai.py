"""Routes `/v1/completions` and `/v1/models`, compatible with OpenAI's clients."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gpt2train.inference.batch import Continuation, TokenDelta
from gpt2train.inference.sequence import TokenScore
from gpt2train.inference.settings import SamplingSettings
from gpt2train.inference.text_stream import TextStream
from gpt2train.plan.parameters import Piece, parameters
from gpt2train.serve.batcher import Ticket
from gpt2train.serve.completions import CompletionRequest
from gpt2train.serve.errors import CONTEXT_EXCEEDED, ApiError, error_body, wrong_field
from gpt2train.serve.service import PARTIAL, Service, cancel, continuation, deltas, finish, seed_of, submit
from gpt2train.serve.sse import EventStream

SCORES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
# Python's splitlines, and clients that apply it to a stream, treat these as line ends; JSON does not.
LINE_ENDS = {ord(letter): f"\\u{ord(letter):04x}" for letter in "\x85\u2028\u2029"}
REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


def openai_routes(service: Service) -> APIRouter:
    """Return the router of /v1."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """List the served model."""
        return {"object": "list", "data": [_model(service)]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Describe the served model."""
        check_model(service, name)
        return _model(service)

    @router.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        check_model(service, body.model)
        prompts = await encoded_prompts(service, body)
        made = CompletionAnswer(service, body, prompts, sampling_jobs(service, body, prompts))
        return await answer(service, made, request)

    return router


async def answer(service: Service, made: "CompletionAnswer", request: Request) -> Response:
    """Run the jobs of an answer, and return it as one body or as a stream."""
    if made.body.stream:
        ticket = submit(service, made.jobs)
        limit = service.settings.deadline + service.settings.body_seconds
        return EventStream(made.events(ticket), lambda: cancel(service, ticket), limit)
    await finish(service, made.jobs, request)
    return JSONResponse(made.whole())


def _model(service: Service) -> dict[str, Any]:
    shape = service.batcher.decoder.shape
    return {
        "id": service.name,
        "object": "model",
        "created": service.started,
        "owned_by": "gpt2train",
        "max_model_len": service.context,
        "parameters": parameters(Piece(shape.layers, first=True, last=True), shape, tp=1, padding=1),
        "chat": service.chat is not None,
        "indexed_tokens": service.tracer and sum(index.tokens for index in service.tracer.indexes),
    }


def check_model(service: Service, name: str | None) -> None:
    """Check that a request names the served model, if it names one."""
    if name is not None and name not in service.names:
        stated = f"no model of that name is served here; its name is {service.name!r}"
        raise ApiError(404, stated, "model", code="model_not_found")


async def encoded_prompts(service: Service, body: CompletionRequest) -> list[list[int]]:
    """Encode the prompts, none of them empty, and check them against the limits."""
    limits, max_new_tokens, samples = service.settings, body.max_tokens or 0, body.n or 1
    if len(body.prompt) * samples > limits.max_sequences:
        raise wrong_field("prompt", f"{len(body.prompt)} x n {samples} is above {limits.max_sequences}")
    if isinstance(body.prompt[0], str):
        prompts = [ids or [service.end] for ids in await service.encode(body.prompt, "prompt")]
    else:
        prompts = body.prompt
        vocab = service.batcher.decoder.shape.vocab
        if max(map(max, prompts)) >= vocab:
            raise wrong_field("prompt", f"the largest token id is {vocab - 1}")
    for prompt in prompts:
        if len(prompt) + max_new_tokens > service.context:
            field, more = "max_tokens", f"and max_tokens is {max_new_tokens}; shorten one of them"
            if len(prompt) >= service.context:  # of a conversation max_tokens is not the number that was sent
                field, more = "prompt", "alone; shorten it"
            stated = f"the model's context is {service.context} tokens, the prompt has {len(prompt)} {more}"
            raise ApiError(400, stated, field, code=CONTEXT_EXCEEDED)
    total = sum(len(prompt) + max_new_tokens for prompt in prompts) * samples
    if total > limits.max_tokens:
        raise wrong_field("prompt", f"{total} tokens with n and max_tokens, {limits.max_tokens} are allowed")
    return prompts


def sampling_jobs(
    service: Service, body: CompletionRequest, prompts: Sequence[Sequence[int]], ends: tuple[int, ...] = ()
) -> list[Continuation]:
    """Return the jobs of a request: `n` continuations of each prompt, which end at `ends` too."""
    scored = body.logprobs is not None
    settings = SamplingSettings(
        max_new_tokens=body.max_tokens or 0,
        temperature=body.temperature,
        top_k=1 if body.top_p == 0 else max(body.top_k or 0, 0),
        top_p=body.top_p or 1.0,
        stop=body.stop,
        stop_tokens=ends,
        seed=seed_of(body.seed),
        log_probs=scored,
        prompt_log_probs=(scored and bool(body.echo)) or not body.max_tokens,
        top_log_probs=body.logprobs or 0,
    )
    return [
        continuation(service, prompt, settings, index, sample, bool(body.stream))
        for index, prompt in enumerate(prompts)
        for sample in range(body.n or 1)
    ]


class CompletionAnswer:
    """Response to one request, as one body or as a stream."""

    kind, number = "text_completion", "cmpl"

    def __init__(
        self, service: Service, body: CompletionRequest, prompts: list[list[int]], jobs: list[Continuation]
    ) -> None:
        self.service, self.body, self.prompts, self.jobs = service, body, prompts, jobs
        number, now = f"{self.number}-{secrets.token_hex(12)}", int(time.time())
        self.head: dict[str, Any] = {"id": number, "object": self.kind, "created": now, "model": service.name}
        self.decoded = [TextStream(service.tokenizer) for _ in jobs]  # text so far: gives each token's offset
        self.begin = [0] * len(jobs)  # characters of the prompt before it
        self.echoed: set[int] = set()

    def whole(self) -> dict[str, Any]:
        """Return the body of the response."""
        choices = [
            self._choice(number, found.text, found.tokens, found.scores, REASONS[found.finished or "length"])
            for number, found in enumerate(job.sequence for job in self.jobs)
        ]
        return {**self.head, "choices": choices, "usage": self._usage()}

    async def events(self, ticket: Ticket) -> AsyncGenerator[str, None]:
        """Yield server-sent events; the last one is `[DONE]` or an error."""
        try:
            async for number, delta in deltas(ticket):
                finished = REASONS[self.jobs[number].sequence.finished or "length"] if delta is None else None
                new = delta or TokenDelta("", (), ())
                choice = self._choice(number, new.text, new.tokens, new.scores, finished)
                if not self._is_empty(choice):
                    yield _event({**self.head, "choices": [choice]})
            if self.body.stream_options and self.body.stream_options.include_usage:
                yield _event({**self.head, "choices": [], "usage": self._usage()})
            yield "data: [DONE]\n\n"
        except ApiError as refusal:
            yield _event(error_body("/v1", refusal.status, refusal.message, code=refusal.code))

    def _is_empty(self, choice: dict[str, Any]) -> bool:
        """Return True if an event with a choice would say nothing."""
        return not (choice["text"] or choice["finish_reason"] or (choice["logprobs"] or {}).get("tokens"))

    def _choice(
        self, number: int, text: str, tokens: Sequence[int], scores: Sequence[TokenScore], finished: str | None
    ) -> dict[str, Any]:
        """Return new text and tokens of a choice; with `echo` the prompt comes before the first ones."""
        found: dict[str, Any] | None = None if self.body.logprobs is None else {name: [] for name in SCORES}
        if self.body.echo and number not in self.echoed:
            self.echoed.add(number)
            index = number // (self.body.n or 1)
            prompt, given = self.prompts[index], self.body.prompt[index]
            decode = self.service.tokenizer.decode
            before = given if isinstance(given, str) else decode(prompt, skip_special_tokens=False)
            if found is not None:  # the first token of a text has no log-probability
                hidden = len(self.service.prefix) if isinstance(given, str) else 0  # tokens before the prompt's text
                decoded = TextStream(self.service.tokenizer)
                starts = [0] * hidden + self._starts(decoded, prompt[hidden:])
                # Of what the prompt's text lacks: the space that SentencePiece puts before a text, and the end of the
                # document before an empty one.
                lost = max(0, len(decoded.text) - len(before))
                scores_of_prompt = [None, *self.jobs[number].sequence.prompt_scores]
                self._add_scores(found, prompt, scores_of_prompt, [max(0, start - lost) for start in starts])
            text, self.begin[number] = before + text, len(before)
        if found is not None:
            begin = self.begin[number]
            self._add_scores(found, tokens, scores, [begin + one for one in self._starts(self.decoded[number], tokens)])
            if not self.body.logprobs:
                found["top_logprobs"] = None
        return {"index": number, "text": text, "logprobs": found, "finish_reason": finished}

    def _starts(self, decoded: TextStream, tokens: Sequence[int]) -> list[int]:
        """Add tokens to a text, and return the number of characters before each."""
        starts = []
        for token in tokens:
            before, name = len(decoded.text), self.service.token_name(token)
            decoded.add(token)
            # A whole character after a partial one, which became U+FFFD by it.
            starts.append(before if name.startswith(PARTIAL) else len(decoded.text) - len(name))
        return starts

    def _add_scores(
        self,
        found: dict[str, Any],
        tokens: Sequence[int],
        scores: Sequence[TokenScore | None],
        starts: Sequence[int],
    ) -> None:
        """Add tokens of a choice to OpenAI's four lists."""
        name = self.service.token_name
        found["tokens"] += map(name, tokens)
        found["text_offset"] += starts
        found["token_logprobs"] += [score and score.log_prob for score in scores]
        found["top_logprobs"] += [score and {name(other): value for other, value in score.top} for score in scores]

    def _usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.prompts))  # each prompt counts once, whatever n is
        generated = sum(len(job.sequence.tokens) for job in self.jobs)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False).translate(LINE_ENDS)}\n\n"
