"""What stands before the routes: the key, the size of bodies and the time they take, and the counting."""

import asyncio
import hmac
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt2train.serve.errors import Refusal, error_response
from gpt2train.serve.events import Left
from gpt2train.serve.service import Service

GUARDED = ("/api", "/v1", "/metrics")
DRAINED = 4  # times the largest body, what is read and dropped: a client that is still sending hears no answer
COUNTED = ("/api", "/v1/completions", "/v1/models", "/health", "/metrics")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, start, status = scope["path"], time.monotonic(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        metrics = self.service.metrics
        try:
            self._check_key(scope)
            body = await self._body(scope, receive)
            await self.app(scope, _replay(body, receive), counted)
        except Refusal as refusal:
            await error_response(path, refusal)(scope, receive, counted)
        except Left:
            metrics.disconnects.inc()
            status = 499  # nginx's number for it; nobody gets it
        finally:
            shown = path if path in COUNTED else "other"
            metrics.requests.labels(shown, status or 500).inc()
            metrics.seconds.labels(shown).observe(time.monotonic() - start)

    def _check_key(self, scope: Scope) -> None:
        key = self.service.key
        if key is None or not scope["path"].startswith(GUARDED):
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + key.encode()):
            raise Refusal(
                401, "send the key of this server as Authorization: Bearer KEY", headers={"WWW-Authenticate": "Bearer"}
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body.

        Raises:
            Refusal: it is too large, or takes too long.
            Left: the client is gone.
        """
        limit, seconds = self.service.settings.max_body, self.service.settings.body_seconds
        too_large = Refusal(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})
        length = dict(scope["headers"]).get(b"content-length", b"0")
        parts: list[bytes] = []
        size, more = 0, True
        declared = int(length[:20]) if length.isdigit() else 0
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Left
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    if max(size, declared) <= limit:
                        parts.append(part)
                    elif size > DRAINED * limit:
                        raise too_large
        except TimeoutError:
            raise Refusal(408, f"the body took longer than {seconds:g} s", headers={"Connection": "close"}) from None
        if max(size, declared) > limit:
            raise too_large
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Callable[[], "asyncio.Future[Message]"]:
    """A `receive` that gives the body and then what else comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again  # type: ignore[return-value]
