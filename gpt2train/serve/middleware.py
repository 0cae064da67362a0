"""ASGI middleware that checks host, origin, API key, and size and duration of bodies, and counts requests."""

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt2train.errors import is_failure
from gpt2train.serve.errors import RETRY, ApiError, error_response, from_job_error
from gpt2train.serve.service import Service
from gpt2train.serve.sse import ClientDisconnectedError

GUARDED = ("/api", "/v1", "/metrics")
BODIES = {"/api": ("PUT", "POST"), "/v1/completions": ("POST",)}
"""Methods of the paths that read a body. The body of any other request is not read: the connection discards it."""
CHAT = "/v1/chat/completions"
COUNTED = ("/api", "/v1/completions", CHAT, "/v1/models", "/v1/trace", "/health", "/metrics")


def bodies_of(service: Service) -> dict[str, tuple[str, ...]]:
    """Return `BODIES` of a server, which has a path more if its model has a chat template."""
    return BODIES if service.chat is None else BODIES | {CHAT: ("POST",)}


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service, self.bodies = app, service, bodies_of(service)
        self.buffered = 0
        """Bytes of all request bodies in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it to the application, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, start, status = scope["path"], time.monotonic(), 0
        headers = dict(scope["headers"])
        # RFC 9112 6.1: a request with both headers may be an attempt at request smuggling.
        ambiguous = {b"content-length", b"transfer-encoding"} <= headers.keys()
        # RFC 9110 10.1.1: without a 100 response a client may or may not send its body; the next bytes are ambiguous.
        unread = b"expect" in headers

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if ambiguous or unread:
                    message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            await send(message)

        metrics = self.service.metrics
        try:
            self._check_host(headers)
            self._check_key(path, headers)
            if scope["method"] in self.bodies.get(path, ()):
                async with self._body(headers, receive) as body:
                    unread = False
                    await self.app(scope, _replay(body, receive), counted)
            else:
                # RFC 9110 9.1: HEAD is GET without the body, which uvicorn leaves out. Monitors ask for it.
                routed = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self.app(routed, receive, counted)
        except ApiError as refusal:
            await error_response(path, refusal)(scope, receive, counted)
        except ClientDisconnectedError:
            metrics.disconnects.inc()
            status = 499  # nginx's status for it; never sent
        except BaseException as error:  # its message is not logged, as it may contain a part of a prompt
            if not is_failure(error):
                raise
            failure = from_job_error(error)
            if status:
                raise RuntimeError("the response is incomplete") from None  # the connection is closed
            await error_response(path, failure)(scope, receive, counted)
        finally:
            shown = path if path in COUNTED else "other"
            metrics.requests.labels(shown, status or 500).inc()
            metrics.seconds.labels(shown).observe(time.monotonic() - start)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        hosts = self.service.hosts
        if hosts is None:
            return
        host, origin = (headers.get(name) for name in (b"host", b"origin"))
        remedy = "start the server with --allowed-host NAME to allow it"
        if host is not None and not hosts.allows_host(host.decode("latin-1")):  # optional in HTTP/1.0
            raise ApiError(421, f"the name in the Host header is not a name of this server; {remedy}")
        if origin is not None and not hosts.allows_origin(origin.decode("latin-1")):
            raise ApiError(403, f"requests from pages of the host in the Origin header are refused; {remedy}")

    def _check_key(self, path: str, headers: dict[bytes, bytes]) -> None:
        key = self.service.key
        if key is None or not path.startswith(GUARDED):
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(b" "), key.encode()):
            asked = {"WWW-Authenticate": "Bearer"}
            remedy = "send the key of this server as Authorization: Bearer KEY"
            raise ApiError(401, remedy, headers=asked, code="invalid_api_key")

    @contextlib.asynccontextmanager
    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> AsyncIterator[bytes]:
        """Read the whole body; it counts as in memory until the request is answered.

        Raises:
            ApiError: the body is compressed, too large or too slow, or the bodies of other requests take too much
                memory.
            ClientDisconnectedError: the client closed the connection.
        """
        settings = self.service.settings
        limit, seconds = settings.max_body, settings.body_seconds
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ApiError(415, "bodies are read as they are; send this one without Content-Encoding")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > limit and b"transfer-encoding" not in headers:
            raise ApiError(413, f"the body is larger than {limit} bytes")
        parts: list[bytes] = []
        size, more = 0, True
        try:
            try:
                async with asyncio.timeout(seconds):
                    while more:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise ClientDisconnectedError
                        part, more = message.get("body", b""), message.get("more_body", False)
                        size += len(part)
                        self.buffered += len(part)
                        if size > limit:
                            raise ApiError(413, f"the body is larger than {limit} bytes")
                        if self.buffered > max(settings.max_buffered, limit):
                            raise ApiError(503, "too many large requests at a time; try again", headers=RETRY)
                        parts.append(part)
            except TimeoutError:
                late = f"the body took longer than {seconds:g} s"
                raise ApiError(408, late, headers={"Connection": "close"}) from None
            body = b"".join(parts)
            parts.clear()
            yield body
        finally:
            self.buffered -= size


def _replay(body: bytes, receive: Receive) -> Callable[[], "asyncio.Future[Message]"]:
    """Return a `receive` that yields the body once and then the messages of the original."""
    done = False

    async def replay() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay  # type: ignore[return-value]
