"""The batcher: continuous batching, rows freed at once, cancellations, and failures reported to all requests."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt2train.inference.batch import Continuation, TokenDelta, advance, row_targets
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.sequence import TokenSequence
from gpt2train.inference.settings import SamplingSettings
from gpt2train.serve.batcher import Batcher, Ticket
from gpt2train.serve.errors import ApiError
from gpt2train.serve.service import deltas
from tests.gpt2train.models import generate_tokens
from tests.gpt2train.serve.local_server import SHAPE, Gate, small_model

SECONDS = 60.0


def job(prompt: Sequence[int], new: int, streams: bool = False, **more: Any) -> Continuation:
    settings = SamplingSettings(**{"temperature": 0, "max_new_tokens": new, **more})
    return Continuation(TokenSequence(prompt, settings, SHAPE.context), streams)


def ticket(*jobs: Any, seconds: float = SECONDS) -> Ticket:
    return Ticket(jobs, seconds)


def runs(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


async def ended(of: Ticket) -> None:
    left = len(of.jobs)
    while left:
        event = await asyncio.wait_for(of.events.get(), SECONDS)
        if isinstance(event, Exception):
            raise event
        left -= event[1] is None


@runs
async def test_a_short_request_that_comes_later_may_end_first() -> None:
    gate = Gate(LocalDecoder(small_model(), 4))
    batcher = Batcher(gate)
    batcher.start()
    long, short = ticket(job([1, 2, 3], 40, streams=True)), ticket(job([4], 3))
    batcher.submit(long)
    gate.allow(10)
    for _ in range(11):
        await asyncio.wait_for(long.events.get(), SECONDS)
    batcher.submit(short)
    gate.allow(3)
    await ended(short)
    assert short.jobs[0].sequence.finished == "length"
    assert long.jobs[0].sequence.finished is None
    gate.allow(40)
    await ended(long)
    assert 2 in gate.rows_seen
    assert gate.rows_seen[-1] == 1
    expected = generate_tokens(small_model(), [[1, 2, 3]], None, SamplingSettings(temperature=0, max_new_tokens=40))
    assert long.jobs[0].sequence.tokens == expected[0]
    batcher.close()


@runs
async def test_a_client_that_disconnects_frees_its_row_for_a_waiting_request() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    batcher = Batcher(gate, queue=2)
    batcher.start()
    first, second, third = ticket(job([1], 90, streams=True)), ticket(job([2], 90)), ticket(job([3], 1))
    for one in (first, second, third):
        batcher.submit(one)
    await asyncio.wait_for(first.events.get(), SECONDS)
    with pytest.raises(ApiError, match="the queue is full"):
        batcher.submit(ticket(job([4], 1)))
    batcher.cancel(second)  # in the queue
    batcher.cancel(first)  # in the decoder
    gate.allow(1)  # the step that may have begun
    await ended(third)
    assert len(first.jobs[0].sequence.tokens) <= 2
    assert second.jobs[0].sequence.tokens == []
    batcher.close()
    assert list(gate.lengths) == []


@runs
async def test_a_failing_decoder_fails_all_requests() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    failures: list[bool] = []
    batcher = Batcher(gate)
    batcher.on_failure = lambda: failures.append(True)
    batcher.start()
    runs, waits = ticket(job([1], 9)), ticket(job([2], 9))
    batcher.submit(runs)
    batcher.submit(waits)
    gate.failure = RuntimeError("no more memory")
    gate.allow(1)
    for one in (runs, waits):
        with pytest.raises(ApiError, match="failed"):
            await ended(one)
    with pytest.raises(ApiError, match="shutting down"):
        batcher.submit(ticket(job([3], 1)))
    batcher.close()
    assert failures == [True]
    assert isinstance(batcher.failure, RuntimeError)


@runs
async def test_long_prompts_are_prefilled_a_few_at_a_time() -> None:
    gate = Gate(LocalDecoder(small_model(), 8))
    batcher = Batcher(gate, prefill_tokens=100)
    flows, late = ticket(job([1], 20)), ticket(*[job([2] * 60, 20) for _ in range(3)])
    batcher.submit(flows)
    batcher.submit(late)
    batcher.start()
    gate.allow(100)
    await ended(flows)
    await ended(late)
    assert gate.rows_seen[:3] == [1, 2, 3]  # one long prompt between two steps, though four rows are free
    batcher.close()


@given(st.lists(st.integers(0, 12), max_size=12))
def test_rows_are_not_moved_without_need(wanted: list[int]) -> None:
    places = row_targets(wanted)
    assert sorted(places) == list(range(len(wanted)))
    stay = {row for row in wanted if row < len(wanted)}
    assert sum(row == position for row, position in zip(wanted, places, strict=True)) == len(stay)


class Doubler:
    """A search that copies its row once, continues with both, and ends after some steps."""

    width = 2
    error = None

    def __init__(self, prompt: Sequence[int], steps: int) -> None:
        self.prompt = self.context_tokens = prompt
        self.steps, self.made = steps, [[], []]

    def advance(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        order = logits.topk(2, 1).indices
        tokens = order[0].tolist() if len(logits) == 1 else order[:, 0].tolist()
        for row, token in zip(self.made, tokens, strict=True):
            row.append(token)
        self.steps -= 1
        return ([0, 0] if len(logits) == 1 else [0, 1], tokens) if self.steps else ([], [])


@runs
async def test_a_beam_search_shares_the_batch_with_other_requests() -> None:
    model = small_model()
    batcher = Batcher(LocalDecoder(model, 4))
    search, others = Doubler([5, 6], 9), [job([1], 3), job([2, 3], 12)]
    batcher.submit(ticket(others[0], search, others[1]))
    last = ticket(job([4], 7))
    batcher.submit(last)
    batcher.start()
    await ended(last)
    while batcher.rows:
        await asyncio.sleep(0.01)
    batcher.close()
    for row in search.made:
        expected = generate_tokens(model, [[5, 6, row[0]]], None, SamplingSettings(temperature=0, max_new_tokens=8))
        assert row[1:] == expected[0]
    for one in others:
        settings = SamplingSettings(temperature=0, max_new_tokens=one.sequence.settings.max_new_tokens)
        assert one.sequence.tokens == generate_tokens(model, [one.prompt], None, settings)[0]


class Faulty(Doubler):
    def advance(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        if self.steps == 8:
            raise ArithmeticError("no number")
        return super().advance(logits)


class Unspeakable:
    decoder = None

    def id_to_token(self, token: int) -> str:
        raise OverflowError("no text")


@runs
async def test_an_error_of_a_job_ends_its_request_alone() -> None:
    """Not finite logits of one row, a text that cannot be made, a search that fails: the others get their answers."""
    model = small_model()
    decoder = LocalDecoder(model, 8)
    add = decoder.add

    def damaged(prompts: Sequence[Sequence[int]]) -> Tensor:
        logits = add(prompts).clone()
        logits[[row for row, prompt in enumerate(prompts) if prompt == [66]], 5] = torch.nan
        return logits

    decoder.add = damaged  # type: ignore[method-assign]
    batcher = Batcher(decoder)
    drawn = {"temperature": 1.0, "seed": 4, "log_probs": True}
    healthy = [ticket(job([1, 2], 20, **drawn)), ticket(job([3], 9), job([4], 12, **drawn)), ticket(Doubler([5], 6))]
    settings = SamplingSettings(max_new_tokens=5)
    speechless = Continuation(TokenSequence([7], settings, SHAPE.context, Unspeakable()))  # type: ignore[arg-type]
    faulty = [ticket(job([66], 5), job([8], 90)), ticket(job([9], 90), speechless), ticket(Faulty([5], 9))]
    for one in [faulty[0], healthy[0], faulty[1], healthy[1], faulty[2], healthy[2]]:
        batcher.submit(one)
    batcher.start()
    for one, message in zip(faulty, ("not finite", "internal server error", "internal server error"), strict=True):
        with pytest.raises(ApiError, match=message):
            await ended(one)
    for one in healthy:
        await ended(one)
    assert batcher.accepting
    batcher.close()
    assert list(decoder.lengths) == []
    for one in healthy[:2]:
        for own in one.jobs:
            alone = generate_tokens(model, [own.prompt], None, own.sequence.settings)
            assert own.sequence.tokens == alone[0]


def test_advance_changes_only_the_given_rows() -> None:
    logits = torch.zeros(3, SHAPE.vocab)
    logits[0, 10] = logits[1, 11] = logits[2, 12] = 5
    jobs = [job([1], 4), job([1], 1), job([1], 4)]
    assert advance(jobs, [[2], [0], [1]], logits) == [[(2, 12)], [], [(1, 11)]]
    assert jobs[1].sequence.tokens == [10]


async def is_left_running(iterations: int) -> bool:
    """True if a request still waits after a cancellation so many iterations of the event loop after an event."""
    job: Any = None
    ticket = Ticket([job], 60)

    async def listen() -> None:
        async for _ in deltas(ticket):
            pass

    listening = asyncio.ensure_future(listen())
    for _ in range(5):
        await asyncio.sleep(0)
    ticket.events.put_nowait((0, TokenDelta("a", (1,), ())))
    for _ in range(iterations):
        await asyncio.sleep(0)
    listening.cancel()
    _, left = await asyncio.wait({listening}, timeout=60)
    return bool(left)


def test_a_request_cancelled_at_any_moment_ends() -> None:
    assert [iterations for iterations in range(6) if asyncio.run(is_left_running(iterations))] == []
