"""`PUT` and `POST /api`: the API of Megatron-LM's text generation server, with its fields, limits and answers.

Differences: an invalid request is answered with status 400 and `{"message": …}`, never with 200 and a bare string; true
and false are not numbers; defaults come from the server's settings.
"""

from collections.abc import Sequence
from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpt2train.data.token_bytes import token_bytes
from gpt2train.inference.beam_search import BeamSearch
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.serve.completions import whole
from gpt2train.serve.errors import wrong_field
from gpt2train.serve.service import Service, continuation, finish, seed_of

LEGACY = {"max_len": "tokens_to_generate", "sentences": "prompts"}


class ApiRequest(BaseModel):
    """Request in Megatron-LM's format."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)

    prompts: list[str] = Field(min_length=1, max_length=128)
    """Texts to continue. An empty one needs `add_BOS`."""
    tokens_to_generate: int | None = Field(None, ge=0)
    """Tokens to generate per prompt; together with the prompt at most the model's context. 0 scores the prompts and
    needs `logprobs`. The server's default is 64."""
    logprobs: bool = False
    """Return the log-probability of each token after the first, including the prompt's."""
    temperature: float | None = Field(None, gt=0, le=100)
    """Divisor of the logits. The server's default is 1."""
    top_k: int | None = Field(None, ge=0, le=1000)
    """Sample among the k most likely tokens; 0 means all, 1 takes the most likely token."""
    top_p: float | None = Field(None, ge=0, le=1)
    """Sample among the smallest set of tokens whose probabilities add up to this; 0 means all. Excludes `top_k`."""
    top_p_decay: float = Field(0.0, ge=0, le=1)
    """Factor applied to `top_p` after each token; 0 means no decay. Needs `top_p`."""
    top_p_bound: float = Field(0.0, ge=0, le=1)
    """Lower bound of the decayed `top_p`. Needs `top_p`; at most `top_p`."""
    add_BOS: bool = False
    """Put `<|endoftext|>` before each prompt. No effect if the tokenizer puts a token of its own there (Llama 2)."""
    stop_on_double_eol: bool = False
    """End at an empty line."""
    stop_on_eol: bool = False
    """End at the end of a line."""
    prevent_newline_after_colon: bool = False
    """Never sample a newline right after a colon."""
    random_seed: int | None = Field(None, ge=0)
    """Random seed; the same request with the same seed gets the same answer. Random by default."""
    no_log: bool = False
    """Accepted for compatibility; prompts are never logged."""
    beam_width: int | None = Field(None, ge=1, le=128)
    """Beam search with this number of beams; for one prompt."""
    stop_token: int | None = Field(None, ge=0)
    """Token that ends a beam; `<|endoftext|>` (50256) by default. For `beam_width`."""
    length_penalty: float = Field(1.0, ge=-10, le=10)
    """Exponent of the length by which a beam's score is divided. For `beam_width`."""

    @model_validator(mode="before")
    @classmethod
    def _legacy(cls, given: Any) -> Any:
        for old, new in LEGACY.items():
            if isinstance(given, dict) and old in given:
                raise ValueError(f"{old}: no longer supported; send {new}")
        return {name: whole(value) for name, value in given.items()} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.add_BOS and "" in self.prompts:
            raise ValueError("prompts: an empty prompt needs add_BOS")
        if self.tokens_to_generate == 0 and not self.logprobs:
            raise ValueError("tokens_to_generate: 0 needs logprobs")
        if self.top_k and self.top_p:
            raise ValueError("top_p: cannot be combined with top_k")
        for name in ("top_p_decay", "top_p_bound"):
            if getattr(self, name) and not self.top_p:
                raise ValueError(f"{name}: needs top_p")
        if self.top_p and self.top_p_bound > self.top_p:
            raise ValueError("top_p_bound: must not be above top_p")
        if self.beam_width and len(self.prompts) > 1:
            raise ValueError("beam_width: needs exactly one prompt")
        if self.beam_width and self.tokens_to_generate == 0:
            raise ValueError("tokens_to_generate: must be 1 or more with beam_width")
        return self


def megatron_routes(service: Service) -> APIRouter:
    """Return the router of /api."""
    router = APIRouter(tags=["Megatron-LM"])

    @router.put("/api", operation_id="put_api")
    @router.post("/api", operation_id="post_api")
    async def api(body: ApiRequest, request: Request) -> dict[str, Any]:
        """Continue prompts, as Megatron-LM's text generation server does."""
        prompts = await _prompts(service, body)
        if body.beam_width:
            return await _search(service, body, prompts[0], request)
        settings = _sampling(service, body)
        jobs = [continuation(service, prompt, settings, index) for index, prompt in enumerate(prompts)]
        await finish(service, jobs, request)
        texts = _texts(service, [[*job.prompt, *job.sequence.tokens] for job in jobs])
        scores = [(*job.sequence.prompt_scores, *job.sequence.scores) for job in jobs]
        log_probs = [[score.log_prob for score in of_job] for of_job in scores]
        return texts | {"logprobs": log_probs if body.logprobs else None}

    return router


async def _search(service: Service, body: ApiRequest, prompt: list[int], request: Request) -> dict[str, Any]:
    """Run a beam search; the best beam comes first in the answer."""
    width = body.beam_width or 1
    if width > service.batcher.decoder.rows:
        raise wrong_field("beam_width", f"at most {service.batcher.decoder.rows} on this server")
    length = _max_new_tokens(service, body)
    settings = BeamSettings(
        beams=width,
        length_penalty=body.length_penalty,
        max_new_tokens=length,
        stop_tokens=service.stop_tokens if body.stop_token is None else (),
    )
    job = BeamSearch(prompt, settings, service.context, service.tokenizer, body.stop_token, service.excluded)
    await finish(service, [job], request)
    texts = _texts(service, [[*prompt, *beam.tokens] for beam in job.beams])
    return texts | {"scores": [beam.score for beam in job.beams]}


async def _prompts(service: Service, body: ApiRequest) -> list[list[int]]:
    """Encode the prompts and check them against the limits."""
    max_new_tokens, limits = _max_new_tokens(service, body), service.settings
    if len(body.prompts) > limits.max_sequences:
        raise wrong_field("prompts", f"at most {limits.max_sequences} on this server")
    bos = [service.end] if body.add_BOS and not service.prefix else []
    prompts = [bos + ids for ids in await service.encode(body.prompts, "prompts")]
    longest = max(map(len, prompts))
    if longest + max_new_tokens > service.context:
        length = f"length of prompt ({longest} tokens) + tokens_to_generate ({max_new_tokens})"
        raise wrong_field("tokens_to_generate", f"{length} is longer than the model's context of {service.context}")
    total = (longest + max_new_tokens) * max(len(prompts), body.beam_width or 1)
    if total > limits.max_api_tokens:
        raise wrong_field("prompts", f"too many tokens, {total} are above {limits.max_api_tokens}")
    return prompts


def _max_new_tokens(service: Service, body: ApiRequest) -> int:
    return service.settings.tokens_to_generate if body.tokens_to_generate is None else body.tokens_to_generate


def _sampling(service: Service, body: ApiRequest) -> SamplingSettings:
    """Convert the request to settings; the server's settings are the defaults."""
    defaults = service.settings
    top_k, top_p = body.top_k, body.top_p
    if top_k is None and top_p is None:
        top_k, top_p = defaults.top_k, defaults.top_p
    stop = [text for text, enabled in (("\n", body.stop_on_eol), ("\n\n", body.stop_on_double_eol)) if enabled]
    return SamplingSettings(
        max_new_tokens=_max_new_tokens(service, body),
        temperature=defaults.temperature if body.temperature is None else body.temperature,
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


def _texts(service: Service, sequences: Sequence[list[int]]) -> dict[str, Any]:
    """Decode prompts with continuations, whole and by token; `<|endoftext|>` is spelled out, as in Megatron-LM."""
    tokenizer = service.tokenizer
    return {
        "text": [tokenizer.decode(ids, skip_special_tokens=False) for ids in sequences],
        "segments": [[token_bytes(tokenizer, token).decode(errors="replace") for token in ids] for ids in sequences],
    }
