"""HTTP server of a page for the person at the terminal, on a loopback address.

Every path begins with a random token, which only that person knows: other users of the machine and web pages in the
same browser cannot read or change anything. The `Host` header is checked against DNS rebinding.
"""

import contextlib
import errno
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from gpt2train.errors import RunError, UserError
from gpt2train.serve.hosts import allowed_hosts

HOST = "127.0.0.1"
PACKAGE = __package__  # has `base.css` and `base.js`, which pages share
NOWHERE = "?"  # name of no page: a path has no question mark
MAX_BODY = 1 << 16  # bytes
IDLE_SECONDS = 30  # after which a connection that sends nothing is closed
MAX_WAITING = 64  # connections that have not sent a request yet
RETRY_SECONDS = 0.1  # until the next try to accept a connection in a process out of files
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "script.js": ("script.js", "text/javascript; charset=utf-8"),
    "base.css": ("base.css", "text/css; charset=utf-8"),
    "base.js": ("base.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    # No inline scripts: one in a document, or in generated text, would not run even if it were inserted as HTML.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Values = dict[str, Any]
Answer = Callable[[Values], Values]


@dataclass(frozen=True)
class Routes:
    """Contents of a page: the package of its `FILES`, and the functions that answer requests by name."""

    package: str
    get: Mapping[str, Answer] = field(default_factory=dict)
    """Called with the parameters of the query, strings."""
    post: Mapping[str, Answer] = field(default_factory=dict)
    """Called with the JSON object of the body. ValueError and TypeError mean that it cannot be read."""
    check: Callable[[], None] = lambda: None
    """Called before each of them. UserError means that the files behind the page have changed."""


class LocalPageServer(ThreadingHTTPServer):
    """Server of a page, and of others below it; `url` is its address.

    Args:
        routes: contents of the page.
        port: port; 0 takes a free one.
        below: contents of the pages at `url` + name + `/`, by name.

    Raises:
        UserError: the port is in use.
    """

    daemon_threads = True
    request_queue_size = MAX_WAITING

    def __init__(self, routes: Routes, port: int = 0, below: Mapping[str, Routes] | None = None) -> None:
        self.pages, self.token = {"": routes, **(below or {})}, secrets.token_urlsafe(24)
        self.hosts = allowed_hosts(HOST, HOST)
        self._waiting: dict[Any, None] = {}  # connections in the order in which they came
        self._lock = threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            remedy = "give another --port, 0 takes a free one"
            raise UserError(f"cannot listen at {HOST}:{port}: {error.strerror}; {remedy}") from error

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; close a silent one first if the process has no files left."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._close_waiting(0)
                time.sleep(RETRY_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread; of more than `MAX_WAITING` that send nothing the oldest is closed."""
        with self._lock:
            self._waiting[request] = None
        self._close_waiting(MAX_WAITING)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        self.stop_waiting(request)
        super().close_request(request)

    def stop_waiting(self, connection: Any) -> None:
        """Note that a connection has sent its request."""
        with self._lock:
            self._waiting.pop(connection, None)

    def _close_waiting(self, maximum: int) -> None:
        """Close the oldest of more than `maximum` waiting connections."""
        with self._lock:
            if len(self._waiting) > maximum:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with contextlib.suppress(OSError):  # its client has closed it
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads an end, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that the browser closed."""


class Handler(BaseHTTPRequestHandler):
    """One request: a file of the page, or an answer in JSON."""

    server: LocalPageServer
    timeout = IDLE_SECONDS
    server_version, sys_version = "gpt2train", ""

    def do_GET(self) -> None:
        """Answer with a file of the page, or by one of the functions."""
        routes, name, query = self._route()
        if name in routes.get:
            parameters = partial(parse_qsl, query, keep_blank_values=True, max_num_fields=16)
            self._answer(routes, routes.get[name], lambda: dict(parameters()))
        elif name in FILES:
            file, kind = FILES[name]
            package = PACKAGE if file.startswith("base.") else routes.package
            self._send(HTTPStatus.OK, files(package).joinpath(file).read_bytes(), kind)
        else:
            self._send_json({"error": "no such page"}, HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Answer by one of the functions."""
        routes, name, _ = self._route()
        if name in routes.post:
            self._answer(routes, routes.post[name], self._body)
        else:
            self._send_json({"error": "no such page"}, HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the paths have the token."""

    def _answer(self, routes: Routes, answer: Answer, values: Callable[[], Values]) -> None:
        try:
            routes.check()
            found = answer(values())
        except (UserError, RunError) as error:
            self._send_json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except OSError as error:
            what = f"cannot read {error.filename or 'the files'}: {error.strerror or error}"
            self._send_json({"error": f"{what}; check the folder, load again"}, HTTPStatus.BAD_REQUEST)
        except (ValueError, TypeError, RecursionError):
            self._send_json({"error": "the request cannot be read; load the page again"}, HTTPStatus.BAD_REQUEST)
        else:
            self._send_json(found)

    def _route(self) -> tuple[Routes, str, str]:
        """Contents of the page, path below it, and query; `NOWHERE` for the path if the token or the host is wrong."""
        first = self.server.pages[""]
        self.server.stop_waiting(self.connection)
        if not self.server.hosts.allows_host(self.headers.get("Host") or ""):
            return first, NOWHERE, ""
        token, slash, rest = self.path.removeprefix("/").partition("/")
        is_ours = hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode())
        if not (is_ours and slash):
            return first, NOWHERE, ""
        path, _, query = rest.partition("?")
        page, slash, name = path.partition("/")
        return (self.server.pages.get(page, first), name, query) if slash else (first, path, query)

    def _body(self) -> Values:
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 < size <= MAX_BODY:
            raise ValueError("no body, or a large one")
        body = json.loads(self.rfile.read(size))
        if not isinstance(body, dict):
            raise ValueError("not an object")
        return body

    def _send_json(self, value: Values, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for header, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)
