"""What both interfaces share: the running model, and how a request waits for its continuations."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.generate.sequence import TokenSequence
from gpt2train.generate.settings import SamplingSettings
from gpt2train.generate.text import token_bytes
from gpt2train.serve.batcher import Batcher, Broken, Busy, Expired, Ticket
from gpt2train.serve.errors import Refusal
from gpt2train.serve.events import Left, closed
from gpt2train.serve.jobs import Continuation, Job, News
from gpt2train.serve.metrics import Metrics
from gpt2train.serve.settings import ServeSettings

RETRY_SECONDS = "1"
LATE_SECONDS = 5.0  # after the deadline, which the batcher keeps between two steps: it does not come where one hangs
LONG_TEXT = 20_000  # characters; to encode more is left to a thread, for it takes milliseconds


@dataclass(frozen=True)
class Service:
    """A model that is served."""

    batcher: Batcher
    tokenizer: Tokenizer
    settings: ServeSettings
    name: str
    """What clients call the model."""
    key: str | None = None
    """What clients must send; never logged, never part of an answer."""
    metrics: Metrics = field(default_factory=Metrics)
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def end(self) -> int:
        """Id of `<|endoftext|>`."""
        return end_of_text_id(self.tokenizer)

    @property
    def context(self) -> int:
        """Tokens of a sequence, prompt and continuation."""
        return self.batcher.decoder.context

    async def encode(self, texts: Sequence[str], field: str) -> list[list[int]]:
        """Ids of texts.

        Raises:
            Refusal: one is no text.
        """
        try:
            if sum(map(len, texts)) < LONG_TEXT:
                return encode_ordinary(self.tokenizer, texts)
            return await asyncio.to_thread(encode_ordinary, self.tokenizer, texts)
        except UserError as error:
            raise Refusal(400, f"{field}: {error}", field) from error

    def token_name(self, token: int) -> str:
        """A token as text; one that is no whole character as `bytes:\\xe2\\x80`, as OpenAI's interface writes it."""
        raw = token_bytes(self.tokenizer, token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def seed_of(seed: int | None) -> int:
    """The seed asked for, not below 0, or one that nobody knows."""
    return secrets.randbits(63) if seed is None else seed % 2**63


def continuation(
    service: Service,
    prompt: Sequence[int],
    settings: SamplingSettings,
    place: int,
    sample: int = 0,
    streams: bool = False,
) -> Continuation:
    """One continuation of a prompt that fits in; `place` and `sample` choose its stream of draws."""
    sequence = TokenSequence(prompt, settings, service.context, service.tokenizer, service.end, place, sample)
    return Continuation(sequence, streams)


def submit(service: Service, jobs: Sequence[Job]) -> Ticket:
    """Put a request into the queue; whoever does calls `leave` at the end, whatever the end is.

    Raises:
        Refusal: there is no room, or nothing is taken any more.
    """
    ticket = Ticket(jobs, time.monotonic() + service.settings.deadline)
    try:
        service.batcher.submit(ticket)
    except (Busy, Broken) as error:
        raise Refusal(503, str(error), headers={"Retry-After": RETRY_SECONDS}) from None
    service.metrics.prompt_tokens.inc(sum(len(job.prompt) for job in jobs))
    return ticket


def leave(service: Service, ticket: Ticket) -> None:
    """Free what a request still holds."""
    service.batcher.leave(ticket)
    service.metrics.generated_tokens.inc(sum(job.made for job in ticket.jobs))


async def news_of(service: Service, ticket: Ticket) -> AsyncIterator[tuple[int, News | None]]:
    """(job, what is new) as it comes, (job, None) when a job is done, until all are.

    Raises:
        Refusal: the time is over, or the model failed.
    """
    left = len(ticket.jobs)
    late = ticket.deadline + LATE_SECONDS
    while left:
        try:
            event = ticket.events.get_nowait()
        except asyncio.QueueEmpty:
            try:
                # Not wait_for: in Python 3.11 it forgets that it was cancelled when an event comes at that moment.
                async with asyncio.timeout(late - time.monotonic()):
                    event = await ticket.events.get()
            except TimeoutError:
                event = Expired()
        if isinstance(event, Expired):
            raise Refusal(504, f"not done within {service.settings.deadline:g} s, the limit of this server")
        if isinstance(event, Exception):
            raise Refusal(500 if service.batcher.failure else 503, str(event))
        left -= event[1] is None
        yield event


async def finish(service: Service, jobs: Sequence[Job], request: Request) -> None:
    """Run jobs to their end.

    Raises:
        Refusal: there was no room or no time, or the model failed.
        Left: nobody waits for the answer any more.
    """
    ticket = submit(service, jobs)
    done = asyncio.ensure_future(_all(service, ticket))
    gone = asyncio.ensure_future(closed(request.receive))
    try:
        await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise Left
        done.result()
    finally:
        leave(service, ticket)
        for task in (done, gone):
            task.cancel()
        await asyncio.gather(done, gone, return_exceptions=True)


async def _all(service: Service, ticket: Ticket) -> None:
    async for _ in news_of(service, ticket):
        pass
