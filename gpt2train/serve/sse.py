"""Server-sent events to a client that may disconnect, or read slowly, at any time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class ClientDisconnectedError(Exception):
    """The client closed the connection."""


async def unless_disconnected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run a coroutine to its end.

    Raises:
        ClientDisconnectedError: the client closed the connection before.
    """

    async def disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = working, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnectedError
        working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(working, disconnected, return_exceptions=True)


class EventStream(Response):
    """Streaming response of server-sent events; `on_end` is called once, however it ends.

    A client that does not read is disconnected after some seconds.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], on_end: Callable[[], None], seconds: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.on_end, self.seconds = events, on_end, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client disconnects."""
        try:
            async with asyncio.timeout(self.seconds):
                await unless_disconnected(self._send_events(send), receive)
        except TimeoutError:
            raise ClientDisconnectedError from None
        finally:
            self.on_end()
            await self.events.aclose()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await asyncio.sleep(0)  # otherwise all pending events are sent before a lost connection is noticed
        await send({"type": "http.response.body", "body": b"", "more_body": False})
