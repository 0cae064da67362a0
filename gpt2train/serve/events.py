"""Server-sent events to a client that may leave, or read slowly, at any time."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Left(Exception):
    """The client closed the connection."""


async def closed(receive: Receive) -> None:
    """Wait until the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response that is sent as it comes.

    Args:
        events: text of each event.
        on_end: called once, however it ends: told to the end, client gone, server stopped.
        seconds: after which a client that does not read is cut off.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None], on_end: Callable[[], None], seconds: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.on_end, self.seconds = events, on_end, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telling = asyncio.ensure_future(self._tell(send))
        gone = asyncio.ensure_future(closed(receive))
        try:
            async with asyncio.timeout(self.seconds):
                await asyncio.wait({telling, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not telling.done():
                raise Left
            telling.result()
        except TimeoutError:
            raise Left from None
        finally:
            self.on_end()
            for task in (telling, gone):
                task.cancel()
            await asyncio.gather(telling, gone, return_exceptions=True)
            await self.events.aclose()

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await asyncio.sleep(0)  # else many events that wait are all sent before a lost connection is heard of
        await send({"type": "http.response.body", "body": b"", "more_body": False})
