"""Served model and life cycle of a request, shared by both APIs."""

import asyncio
import functools
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request

from gpt2train.data.token_bytes import longest_token, token_bytes
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.inference.sequence import TokenSequence
from gpt2train.inference.settings import SamplingSettings
from gpt2train.plan.parameters import Piece, parameters
from gpt2train.serve.batcher import Batcher, DeadlineExceededError, QueueFullError, ServerFailedError, Ticket
from gpt2train.serve.decode_jobs import Continuation, Job, TokenDelta
from gpt2train.serve.errors import ApiError
from gpt2train.serve.hosts import AllowedHosts
from gpt2train.serve.metrics import Metrics
from gpt2train.serve.settings import ServeSettings
from gpt2train.serve.sse import ClientDisconnectedError, closed

RETRY_SECONDS = "1"
DEADLINE_MARGIN_SECONDS = 5.0  # added to the deadline, which the batcher checks between steps, if a step hangs
DEFAULT_NAME = "model"  # name of the folder that a merge writes; always accepted as the model's name
LONG_TEXT = 20_000  # characters; longer texts take milliseconds to encode, so a thread does it


@dataclass(frozen=True)
class Service:
    """Served model."""

    batcher: Batcher
    tokenizer: Tokenizer
    settings: ServeSettings
    name: str
    """Name of the model for clients."""
    key: str | None = None
    """API key that clients must send; never logged, never part of an answer."""
    hosts: AllowedHosts | None = None
    """Hosts that requests may name; None allows any."""
    metrics: Metrics = field(default_factory=Metrics)
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

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        shape = self.batcher.decoder.shape
        return parameters(Piece(shape.layers, first=True, last=True), shape, tp=1, padding=1)

    @functools.cached_property
    def longest_text(self) -> int | None:
        """Bytes above which no text fits into the context; None if the tokenizer may drop or change characters."""
        longest = longest_token(self.tokenizer)
        return longest and longest * self.context

    async def encode(self, texts: Sequence[str], field: str) -> list[list[int]]:
        """Encode texts in order, up to and including the first one that is longer than the context.

        Args:
            texts: texts to encode.
            field: field of the request that holds them, for error messages.

        Raises:
            ApiError: a text cannot be encoded, or is certainly longer than the context.
        """
        limit = self.longest_text
        for text in texts:
            # The cheap number of characters first: encoding 4 MB of text takes 3 s of a core and 600 MB.
            if limit is not None and (len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit):
                raise ApiError(
                    400,
                    f"{field}: a text of {len(text)} characters is longer than the model's context of {self.context} "
                    "tokens",
                    field,
                )
        try:
            if sum(map(len, texts)) < LONG_TEXT:
                return encode_ordinary(self.tokenizer, texts)
            return await asyncio.to_thread(self._encode_long, texts)
        except UserError as error:
            raise ApiError(400, f"{field}: {error}", field) from error

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
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


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

    Args:
        service: served model.
        prompt: token ids; at least one, and fewer than the context.
        settings: settings of the continuation.
        prompt_index: index of the prompt in its request; with `sample` and the seed it selects the random stream.
        sample: index of this continuation among those of the prompt.
        streams: True to send an event per token.
    """
    sequence = TokenSequence(prompt, settings, service.context, service.tokenizer, service.end, prompt_index, sample)
    return Continuation(sequence, streams)


def submit(service: Service, jobs: Sequence[Job]) -> Ticket:
    """Queue a request; the caller must call `cancel` at its end, in every case.

    Raises:
        ApiError: the queue is full, or requests are no longer accepted.
    """
    ticket = Ticket(jobs, time.monotonic() + service.settings.deadline)
    try:
        service.batcher.submit(ticket)
    except (QueueFullError, ServerFailedError) as error:
        raise ApiError(503, str(error), headers={"Retry-After": RETRY_SECONDS}) from None
    service.metrics.prompt_tokens.inc(sum(len(job.prompt) for job in jobs))
    return ticket


def cancel(service: Service, ticket: Ticket) -> None:
    """Free the rows of a request and count its generated tokens."""
    service.batcher.cancel(ticket)
    service.metrics.generated_tokens.inc(sum(job.num_tokens for job in ticket.jobs))


async def deltas(service: Service, ticket: Ticket) -> AsyncIterator[tuple[int, TokenDelta | None]]:
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
                event = DeadlineExceededError()
        if isinstance(event, DeadlineExceededError):
            raise ApiError(504, f"not done within {service.settings.deadline:g} s, the limit of this server")
        if isinstance(event, Exception):
            raise ApiError(500 if service.batcher.failure else 503, str(event))
        unfinished -= event[1] is None
        yield event


async def finish(service: Service, jobs: Sequence[Job], request: Request) -> None:
    """Run the jobs of a request until all are done.

    Raises:
        ApiError: the queue is full, the deadline has passed, or the model failed.
        ClientDisconnectedError: the client closed the connection.
    """
    ticket = submit(service, jobs)
    done = asyncio.ensure_future(_drain(service, ticket))
    disconnected = asyncio.ensure_future(closed(request.receive))
    try:
        await asyncio.wait({done, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ClientDisconnectedError
        done.result()
    finally:
        cancel(service, ticket)
        for task in (done, disconnected):
            task.cancel()
        await asyncio.gather(done, disconnected, return_exceptions=True)


async def _drain(service: Service, ticket: Ticket) -> None:
    async for _ in deltas(service, ticket):
        pass


def name_of(folder: Path) -> str:
    """Return the name of a model: its folder's name, or the parent folder's if the folder is called `model`."""
    name, parent = folder.resolve().name, folder.resolve().parent.name
    return parent if name == DEFAULT_NAME and parent else name
