"""HTTP connections with time limits.

uvicorn closes a connection that is idle after a response. It has no time limit for the head of a request, for the rest
of a body that the application does not read, or for a response that the client does not read.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt2train.io.heartbeat import LastChange
from gpt2train.serve.errors import error_body
from gpt2train.serve.settings import ServeSettings

CHECK_SECONDS, MIN_CHECK_SECONDS = 1.0, 0.01


class LimitedConnection(H11Protocol):
    """Connection that closes if its client neither sends nor reads.

    The head must end `head_seconds` after the connection began or the last request ended, the rest of a body, which is
    discarded, `body_seconds` after the response. A response must progress within `unread_seconds`.
    """

    def __init__(self, *args: Any, settings: ServeSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head_seconds, self.body_seconds = settings.head_seconds, settings.body_seconds
        self.unread_seconds = settings.deadline + settings.body_seconds
        self._interval = max(MIN_CHECK_SECONDS, min(CHECK_SECONDS, self.head_seconds / 4, self.body_seconds / 4))
        self._timer: asyncio.TimerHandle | None = None
        self._progress = LastChange()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

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

    def _refuse(self, status: int, message: str) -> None:
        """Answer an invalid request; its path is unknown, so the error has the fields of both APIs."""
        body = json.dumps(error_body("/", status, message) | error_body("/v1", status, message)).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        reason = HTTPStatus(status).phrase.encode()
        answer = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
