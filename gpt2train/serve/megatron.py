"""`PUT` and `POST /api`: the interface of Megatron-LM's text generation server, its fields, limits and answers.

Unlike there, a wrong request is answered with a status of 400 and `{"message": …}`, never with 200 and a bare string,
true and false are no numbers, and the defaults given at the start of the server are used.
"""

from collections.abc import Sequence
from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpt2train.generate.settings import BeamSettings, SamplingSettings
from gpt2train.generate.text import token_bytes
from gpt2train.serve.errors import Refusal
from gpt2train.serve.jobs import BeamSearch, Continuation
from gpt2train.serve.service import Service, continuation, finish, seed_of

LEGACY = {"max_len": "tokens_to_generate", "sentences": "prompts"}


class ApiRequest(BaseModel):
    """A request as Megatron-LM's clients send it."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)

    prompts: list[str] = Field(min_length=1, max_length=128)
    """Texts to go on with. An empty one needs `add_BOS`."""
    tokens_to_generate: int | None = Field(None, ge=0)
    """Tokens to generate for each; with the prompt no more than the model's context. 0 scores the prompts and needs
    `logprobs`. The server's default is 64."""
    logprobs: bool = False
    """Say the log-probability of each token after the first, the prompt's included."""
    temperature: float | None = Field(None, gt=0, le=100)
    """Divides the logits. The server's default is 1."""
    top_k: int | None = Field(None, ge=0, le=1000)
    """Draw among the k most likely tokens; 0 means all, 1 takes the most likely one."""
    top_p: float | None = Field(None, ge=0, le=1)
    """Draw among the fewest tokens whose probabilities reach this sum; 0 means all. Not together with `top_k`."""
    top_p_decay: float = Field(0.0, ge=0, le=1)
    """Multiplies `top_p` after each token; 0 leaves it. Needs `top_p`."""
    top_p_bound: float = Field(0.0, ge=0, le=1)
    """What the decay does not take `top_p` below. Needs `top_p`, and is not above it."""
    add_BOS: bool = False
    """Put `<|endoftext|>` before each prompt."""
    stop_on_double_eol: bool = False
    """End at an empty line."""
    stop_on_eol: bool = False
    """End at the end of a line."""
    prevent_newline_after_colon: bool = False
    """Never draw a newline right after a colon."""
    random_seed: int | None = Field(None, ge=0)
    """The same request with the same seed gets the same answer; chosen by chance where not given."""
    no_log: bool = False
    """Taken for its clients' sake: no prompt is ever logged."""
    beam_width: int | None = Field(None, ge=1, le=128)
    """Search with so many beams; one prompt."""
    stop_token: int | None = Field(None, ge=0)
    """Token that ends a beam, `<|endoftext|>` (50256) where not given. For `beam_width`."""
    length_penalty: float = Field(1.0, ge=-10, le=10)
    """A beam's score is divided by its length to this power. For `beam_width`."""

    @model_validator(mode="before")
    @classmethod
    def _legacy(cls, given: Any) -> Any:
        for old, new in LEGACY.items():
            if isinstance(given, dict) and old in given:
                raise ValueError(f"{old}: no longer used; send {new}")
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.add_BOS and "" in self.prompts:
            raise ValueError("prompts: an empty prompt needs add_BOS")
        if self.tokens_to_generate == 0 and not self.logprobs:
            raise ValueError("tokens_to_generate: 0 needs logprobs")
        if self.top_k and self.top_p:
            raise ValueError("top_p: not together with top_k")
        for name in ("top_p_decay", "top_p_bound"):
            if getattr(self, name) and not self.top_p:
                raise ValueError(f"{name}: needs top_p")
        if self.top_p and self.top_p_bound > self.top_p:
            raise ValueError("top_p_bound: not above top_p")
        if self.beam_width and len(self.prompts) > 1:
            raise ValueError("beam_width: with one prompt only")
        if self.beam_width and self.tokens_to_generate == 0:
            raise ValueError("tokens_to_generate: 1 or more with beam_width")
        return self


def megatron_routes(service: Service) -> APIRouter:
    """The route /api."""
    router = APIRouter(tags=["Megatron-LM"])

    @router.put("/api", operation_id="put_api")
    @router.post("/api", operation_id="post_api")
    async def api(body: ApiRequest, request: Request) -> dict[str, Any]:
        """Continue prompts, as Megatron-LM's text generation server does."""
        prompts = await _prompts(service, body)
        if body.beam_width:
            return await _search(service, body, prompts[0], request)
        settings = _sampling(service, body)
        jobs = [continuation(service, prompt, settings, place) for place, prompt in enumerate(prompts)]
        await finish(service, jobs, request)
        tokens = [[*job.prompt, *job.sequence.tokens] for job in jobs]
        return {
            "text": [_text(service, ids) for ids in tokens],
            "segments": [_segments(service, ids) for ids in tokens],
            "logprobs": [_log_probs(job) for job in jobs] if body.logprobs else None,
        }

    return router


async def _search(service: Service, body: ApiRequest, prompt: list[int], request: Request) -> dict[str, Any]:
    """The answer with beams, the best first."""
    width = body.beam_width or 1
    if width > service.batcher.decoder.rows:
        raise Refusal(400, f"beam_width: this server runs {service.batcher.decoder.rows} at once", "beam_width")
    settings = BeamSettings(beams=width, length_penalty=body.length_penalty, max_new_tokens=_new(service, body))
    job = BeamSearch(prompt, settings, service.context, service.tokenizer, body.stop_token)
    await finish(service, [job], request)
    tokens = [[*prompt, *beam.tokens] for beam in job.beams]
    return {
        "text": [_text(service, ids) for ids in tokens],
        "segments": [_segments(service, ids) for ids in tokens],
        "scores": [beam.score for beam in job.beams],
    }


async def _prompts(service: Service, body: ApiRequest) -> list[list[int]]:
    """Token ids of every prompt, within the limits."""
    new, limits = _new(service, body), service.settings
    if len(body.prompts) > limits.max_sequences:
        raise Refusal(400, f"prompts: this server takes {limits.max_sequences} at once", "prompts")
    start = [service.end] if body.add_BOS else []
    prompts = [start + ids for ids in await service.encode(body.prompts, "prompts")]
    longest = max(map(len, prompts))
    if longest + new > service.context:
        raise Refusal(
            400,
            f"tokens_to_generate: length of prompt ({longest} tokens) + tokens_to_generate ({new}) is longer than the "
            f"model's context of {service.context}",
            "tokens_to_generate",
        )
    total = (longest + new) * max(len(prompts), body.beam_width or 1)
    if total > limits.max_api_tokens:
        raise Refusal(400, f"prompts: too many tokens, {total} are above {limits.max_api_tokens}", "prompts")
    return prompts


def _new(service: Service, body: ApiRequest) -> int:
    return service.settings.tokens_to_generate if body.tokens_to_generate is None else body.tokens_to_generate


def _sampling(service: Service, body: ApiRequest) -> SamplingSettings:
    """What was asked for, and the server's defaults where nothing was said."""
    usual = service.settings
    top_k, top_p = body.top_k, body.top_p
    if top_k is None and top_p is None:
        top_k, top_p = usual.top_k, usual.top_p
    stop = [token for token, wanted in (("\n", body.stop_on_eol), ("\n\n", body.stop_on_double_eol)) if wanted]
    return SamplingSettings(
        max_new_tokens=_new(service, body),
        temperature=usual.temperature if body.temperature is None else body.temperature,
        top_k=top_k or 0,
        top_p=top_p or 1.0,
        top_p_decay=body.top_p_decay or 1.0,
        top_p_bound=body.top_p_bound,
        seed=seed_of(body.random_seed),
        stop=tuple(stop),
        prevent_newline_after_colon=body.prevent_newline_after_colon,
        log_probs=body.logprobs,
        prompt_log_probs=body.logprobs,
    )


def _text(service: Service, tokens: Sequence[int]) -> str:
    """Text of prompt and continuation, `<|endoftext|>` as its letters, as there."""
    return service.tokenizer.decode(list(tokens), skip_special_tokens=False)


def _segments(service: Service, tokens: Sequence[int]) -> list[str]:
    return [token_bytes(service.tokenizer, token).decode(errors="replace") for token in tokens]


def _log_probs(job: Continuation) -> list[float]:
    return [score.log_prob for score in (*job.sequence.prompt_scores, *job.sequence.scores)]
