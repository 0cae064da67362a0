"""Server-sent events to a client that may disconnect, or read slowly, at any time."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class ClientDisconnectedError(Exception):
    """The client closed the connection."""


async def closed(receive: Receive) -> None:
    """Wait until the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Streaming response of server-sent events.

    Args:
        events: text of each event.
        on_end: called once at the end of the response: complete, client disconnected, or server stopped.
        seconds: time limit in seconds, after which a client that does not read is disconnected.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], on_end: Callable[[], None], seconds: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.on_end, self.seconds = events, on_end, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client disconnects."""
        sending = asyncio.ensure_future(self._send_events(send))
        disconnected = asyncio.ensure_future(closed(receive))
        try:
            async with asyncio.timeout(self.seconds):
                await asyncio.wait({sending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientDisconnectedError
            sending.result()
        except TimeoutError:
            raise ClientDisconnectedError from None
        finally:
            self.on_end()
            for task in (sending, disconnected):
                task.cancel()
            await asyncio.gather(sending, disconnected, return_exceptions=True)
            await self.events.aclose()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await asyncio.sleep(0)  # otherwise all pending events are sent before a lost connection is noticed
        await send({"type": "http.response.body", "body": b"", "more_body": False})
