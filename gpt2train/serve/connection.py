"""HTTP connections with time limits, and a limited number of them.

uvicorn closes a connection that is idle after a response. It has no time limit for the head of a request, for the rest
of a body that the application does not read, or for a response that the client does not read. It opens connections as
long as the process may open files, and asyncio then logs a traceback for each that waits.
"""

import asyncio
import functools
import json
import logging
import socket
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import h11
import psutil
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt2train.serve.errors import error_body
from gpt2train.serve.settings import ServeSettings
from gpt2train.store.process import LastChange

try:
    import resource
except ImportError:  # Windows, where files have no such limit
    resource = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

BACKLOG = 128  # connections that wait, and that asyncio accepts at once
RESERVED_FILES = 16  # of the process, for anything but connections
LOG_SECONDS = 60.0
CHECK_SECONDS, MIN_CHECK_SECONDS = 1.0, 0.01


class LimitedConnection(H11Protocol):
    """Connection that closes if its client neither sends nor reads, or if it waits while others need its place.

    The head must end `head_seconds` after the connection began or the last request ended, the rest of a body, which is
    discarded, `body_seconds` after the response. A response must progress within `unread_seconds`. Of more than
    `maximum` connections the one that has waited longest for its client is closed; if all are being answered, the new
    one is refused.
    """

    def __init__(self, *args: Any, settings: ServeSettings, maximum: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.maximum, self.waits_since = maximum, self.loop.time()
        self.head_seconds, self.body_seconds = settings.head_seconds, settings.body_seconds
        self.unread_seconds = settings.deadline + settings.body_seconds
        self._interval = max(MIN_CHECK_SECONDS, min(CHECK_SECONDS, self.head_seconds / 4, self.body_seconds / 4))
        self._timer: asyncio.TimerHandle | None = None
        self._progress = LastChange()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if sum(map(is_open, self.connections)) > self.maximum and not close_waiting(self.connections - {self}):
            self._refuse(503, "too many connections are open; try again in a moment", ("Retry-After", "1"))
            transport.close()
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def _should_upgrade(self) -> bool:
        return False  # no WebSocket: an upgrade request is answered like any other, as RFC 9110 7.8 allows

    def _check(self) -> None:
        awaited, seconds = self._state()
        if self._progress.age(awaited) > seconds:
            self._time_out()
        self._timer = self.loop.call_later(self._interval, self._check)

    def _state(self) -> tuple[object, float]:
        """Return (awaited progress, its time limit in seconds); an equal value at the next check means no progress."""
        unsent = self.transport.get_write_buffer_size()
        if unsent or self.transport.is_closing():
            return ("reader", unsent), self.unread_seconds
        if self.conn.their_state is h11.IDLE:
            return ("head", self.cycle), self.head_seconds
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE:
            return ("rest of the body", self.cycle), self.body_seconds
        return None, float("inf")

    def _time_out(self) -> None:
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self.transport.abort()
            return
        if self.conn.trailing_data[0]:  # part of a head; a client that sent nothing expects no response
            self._refuse(408, f"the head of the request took longer than {self.head_seconds:g} s")
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not an HTTP/1.1 request")
        self.transport.close()

    def _refuse(self, status: int, message: str, *more: tuple[str, str]) -> None:
        """Answer an invalid request; its path is unknown, so the error has the fields of both APIs."""
        body = json.dumps(error_body("/", status, message) | error_body("/v1", status, message)).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *more,
        ]
        reason = HTTPStatus(status).phrase.encode()
        answer = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")


class ConnectionServer(uvicorn.Server):
    """uvicorn's server, which closes a waiting connection and logs one line a minute if it cannot open a file."""

    _quiet_until = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        asyncio.get_running_loop().set_exception_handler(self._handle)
        await super().startup(sockets)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "out of system resource" not in context["message"]:
            loop.default_exception_handler(context)
            return
        close_waiting(self.server_state.connections)
        if loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + LOG_SECONDS
            log.warning("cannot accept a connection: %s; the ones that wait longest are closed", context["exception"])


def connection_limits(maximum: int) -> tuple[int, int]:
    """Return the number of connections that may be open, at most `maximum`, and the backlog, by the files left."""
    if resource is None:
        return maximum, BACKLOG
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = maximum + BACKLOG if files == resource.RLIM_INFINITY else files - psutil.Process().num_fds() - RESERVED_FILES
    backlog = max(1, min(BACKLOG, free // 4))
    return max(1, min(maximum, free - backlog)), backlog


def http_server(app: Any, settings: ServeSettings, listener: socket.socket) -> ConnectionServer:
    """Return a server of an ASGI application on a bound socket, to which clients can connect from now on."""
    maximum, backlog = connection_limits(settings.max_connections)
    listener.listen(backlog)
    return ConnectionServer(
        uvicorn.Config(
            app,
            http=functools.partial(LimitedConnection, settings=settings, maximum=maximum),  # type: ignore[arg-type]
            ws="none",
            log_level="error",  # any client could trigger a warning line with each request
            access_log=False,
            server_header=False,
            lifespan="off",
            backlog=backlog,
            timeout_graceful_shutdown=round(settings.shutdown_timeout),
        )
    )


def is_open(connection: Any) -> bool:
    """Return True for a connection that is not being closed."""
    return not connection.transport.is_closing()


def close_waiting(connections: Iterable[Any]) -> bool:
    """Close the connection that has waited longest for a request of its client; return False if none waits."""
    waiting = [one for one in connections if is_open(one) and one.conn.their_state in (h11.IDLE, h11.SEND_BODY)]
    if waiting:
        min(waiting, key=lambda one: one.waits_since).transport.abort()
    return bool(waiting)
