"""Served model and life cycle of a request, shared by both APIs."""

import asyncio
import functools
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request
from torch import Tensor

from gpt2train.data.chat import Chat
from gpt2train.data.template import prefix_ids
from gpt2train.data.token_bytes import longest_token, token_bytes
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.inference.batch import Continuation, Job, TokenDelta
from gpt2train.inference.prompts import ids_without_token
from gpt2train.inference.sequence import TokenSequence
from gpt2train.inference.settings import SamplingSettings
from gpt2train.runs.text_trace import TextTracer
from gpt2train.serve.batcher import Batcher, Ticket
from gpt2train.serve.errors import CONTEXT_EXCEEDED, ApiError, late, wrong_field
from gpt2train.serve.hosts import AllowedHosts
from gpt2train.serve.settings import ServeSettings
from gpt2train.serve.sse import unless_disconnected
from gpt2train.store.hub import repository_of

DEADLINE_MARGIN_SECONDS = 5.0  # added to the deadline, which the batcher checks between steps, if a step hangs
DEFAULT_NAME = "model"  # name of the folder that a merge writes; always accepted as the model's name
PARTIAL = "bytes:"  # begin of the name of a token that is not a whole character
LONG_TEXT = 20_000  # characters; longer texts take milliseconds to encode, so a thread does it
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # seconds


class Metrics:
    """Prometheus metrics of one server, in their own registry; they contain no part of any prompt or answer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "gpt2train", "registry": self.registry}
        self.requests = Counter("requests", "Requests answered.", ["path", "status"], **own)
        self.seconds = Histogram("request_seconds", "From arrival to the last byte.", ["path"], buckets=BUCKETS, **own)
        self.disconnects = Counter("disconnects", "Clients that disconnected before the answer.", **own)
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens accepted.", **own)
        self.generated_tokens = Counter("generated_tokens", "Tokens generated.", **own)
        self.waiting = Gauge("waiting_sequences", "Sequences that wait for a row.", **own)
        self.running = Gauge("running_rows", "Decoder rows in use.", **own)
        self.steps = Gauge("decoder_steps", "Steps of the decoder since the start.", **own)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


@dataclass(frozen=True)
class Service:
    """Served model."""

    batcher: Batcher
    tokenizer: Tokenizer
    settings: ServeSettings
    name: str  # name of the model for clients
    key: str | None = None  # API key that clients must send; never logged, never part of an answer
    hosts: AllowedHosts | None = None  # hosts that requests may name; None allows any
    metrics: Metrics = field(default_factory=Metrics)
    tracer: TextTracer | None = None  # training tokens that are searched for spans of a text
    stop_tokens: tuple[int, ...] = ()  # ids that end a continuation, besides `end`
    chat: Chat | None = None  # encoder of conversations, for a model with a chat template
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def end(self) -> int:
        """Id of `<|endoftext|>`."""
        return end_of_text_id(self.tokenizer)

    @property
    def context(self) -> int:
        """Context length in tokens, of prompt and continuation together."""
        return self.batcher.decoder.context

    @property
    def names(self) -> list[str]:
        """Accepted names of the model; `model` is always one of them."""
        return list(dict.fromkeys((self.name, DEFAULT_NAME)))

    @functools.cached_property
    def longest_text(self) -> int | None:
        """Bytes above which no text fits into the context; None if the tokenizer may drop or change characters."""
        longest = longest_token(self.tokenizer)
        return longest and longest * self.context

    @functools.cached_property
    def excluded(self) -> Tensor | None:
        """Ids that stand for no token and are never sampled."""
        return ids_without_token(self.batcher.decoder.shape, self.tokenizer, self.stop_tokens)

    @functools.cached_property
    def prefix(self) -> list[int]:
        """Ids that the tokenizer's template puts before a text."""
        return prefix_ids(self.tokenizer)

    async def encode(self, texts: Sequence[str], field: str) -> list[list[int]]:
        """Encode texts in order, each after `prefix`, up to and including the first longer than the context.

        Errors name a `field`.

        Raises:
            ApiError: a text cannot be encoded, or is certainly longer than the context.
        """
        limit = self.longest_text
        for text in texts:
            # The cheap number of characters first: encoding 4 MB of text takes 3 s of a core and 600 MB.
            if limit is not None and (len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit):
                problem = (
                    f"a text of {len(text)} characters is longer than the model's context of {self.context} tokens"
                )
                raise wrong_field(field, problem, CONTEXT_EXCEEDED)
        try:
            if sum(map(len, texts)) < LONG_TEXT:
                found = encode_ordinary(self.tokenizer, texts)
            else:
                found = await asyncio.to_thread(self._encode_long, texts)
            return [[*self.prefix, *ids] for ids in found]
        except UserError as error:
            raise wrong_field(field, str(error)) from error

    def _encode_long(self, texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = []
        for text in texts:
            found += encode_ordinary(self.tokenizer, [text])
            if len(found[-1]) > self.context:
                break
        return found

    def token_name(self, token: int) -> str:
        r"""Return a token as text, or as `bytes:\xe2\x80` if it is not a whole character, as OpenAI's API does."""
        raw = token_bytes(self.tokenizer, token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return PARTIAL + "".join(f"\\x{byte:02x}" for byte in raw)


def seed_of(seed: int | None) -> int:
    """Return the requested seed modulo 2^63, or a random one."""
    return secrets.randbits(63) if seed is None else seed % 2**63


def continuation(
    service: Service,
    prompt: Sequence[int],
    settings: SamplingSettings,
    prompt_index: int,
    sample: int = 0,
    streams: bool = False,
) -> Continuation:
    """Create the job of one continuation.

    The prompt has at least one token and fewer than the context. The seed, `prompt_index` and `sample`, an index among
    the continuations of a prompt, select the random stream. With `streams` each token is an event.
    """
    settings = settings.model_copy(update={"stop_tokens": (*settings.stop_tokens, *service.stop_tokens)})
    sequence = TokenSequence(
        prompt, settings, service.context, service.tokenizer, service.end, prompt_index, sample, service.excluded
    )
    return Continuation(sequence, streams)


def submit(service: Service, jobs: Sequence[Job]) -> Ticket:
    """Queue a request; the caller must call `cancel` at its end, in every case.

    Raises:
        ApiError: the queue is full, or requests are no longer accepted.
    """
    ticket = Ticket(jobs, service.settings.deadline)
    service.batcher.submit(ticket)
    service.metrics.prompt_tokens.inc(sum(len(job.prompt) for job in jobs))
    return ticket


def cancel(service: Service, ticket: Ticket) -> None:
    """Free the rows of a request and count its generated tokens."""
    service.batcher.cancel(ticket)
    service.metrics.generated_tokens.inc(sum(job.num_tokens for job in ticket.jobs))


async def deltas(ticket: Ticket) -> AsyncIterator[tuple[int, TokenDelta | None]]:
    """Yield (job number, delta) while jobs run and (job number, None) when a job is done, until all are done.

    Raises:
        ApiError: the deadline has passed, or the model failed.
    """
    unfinished = len(ticket.jobs)
    latest = ticket.deadline + DEADLINE_MARGIN_SECONDS
    while unfinished:
        try:
            event = ticket.events.get_nowait()
        except asyncio.QueueEmpty:
            try:
                # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with an event.
                async with asyncio.timeout(latest - time.monotonic()):
                    event = await ticket.events.get()
            except TimeoutError:
                event = late(ticket.seconds)
        if isinstance(event, ApiError):
            raise event
        unfinished -= event[1] is None
        yield event


async def finish(service: Service, jobs: Sequence[Job], request: Request) -> None:
    """Run the jobs of a request until all are done.

    Raises:
        ApiError: the queue is full, the deadline has passed, or the model failed.
        ClientDisconnectedError: the client closed the connection.
    """
    ticket = submit(service, jobs)

    async def drain() -> None:
        async for _ in deltas(ticket):
            pass

    try:
        await unless_disconnected(drain(), request.receive)
    finally:
        cancel(service, ticket)


def name_of(folder: Path) -> str:
    """Return the name of a model: its folder's name, the parent folder's if that is `model`, or the name on the hub."""
    if of_hub := repository_of(folder.resolve()):
        return of_hub[0].rpartition("/")[2]
    name, parent = folder.resolve().name, folder.resolve().parent.name
    return parent if name == DEFAULT_NAME and parent else name
