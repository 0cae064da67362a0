"""Cancellation of a request at the moment of an event."""

import asyncio
from typing import Any

from gpt2train.inference.batch import TokenDelta
from gpt2train.serve.batcher import Ticket
from gpt2train.serve.service import deltas


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
    _, left = await asyncio.wait({listening}, timeout=1)
    return bool(left)


def test_a_request_cancelled_at_any_moment_ends() -> None:
    assert [iterations for iterations in range(6) if asyncio.run(is_left_running(iterations))] == []
