"""HTTP server of a page for the person at the terminal, on a loopback address.

Every path begins with a random token, which only that person knows: other users of the machine and web pages in the
same browser cannot read or change anything. The `Host` header is checked against DNS rebinding.
"""

import hmac
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gpt2train.errors import RunError, UserError
from gpt2train.serve.connection import http_server
from gpt2train.serve.hosts import allowed_hosts
from gpt2train.serve.settings import ServeSettings

HOST = "127.0.0.1"
PACKAGE = __package__  # has `base.css` and `base.js`, which pages share
MAX_BODY = 1 << 16  # bytes
LIMITS = ServeSettings(max_connections=64, head_seconds=30.0, shutdown_timeout=1.0)
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


NOTHING = Routes("")


class LocalPageServer:
    """Server of a page, and of others below it; `url` is its address.

    Args:
        routes: contents of the page.
        port: port; 0 takes a free one.
        below: contents of the pages at `url` + name + `/`, by name.

    Raises:
        UserError: the port is in use.
    """

    def __init__(self, routes: Routes, port: int = 0, below: Mapping[str, Routes] | None = None) -> None:
        self.pages, self.token = {"": routes, **(below or {})}, secrets.token_urlsafe(24)
        self.hosts = allowed_hosts(HOST, HOST)
        try:
            self.listener = socket.create_server((HOST, port))
        except OSError as error:
            remedy = "give another --port, 0 takes a free one"
            raise UserError(f"cannot listen at {HOST}:{port}: {error.strerror}; {remedy}") from error
        self.port = self.listener.getsockname()[1]
        route = Route("/{path:path}", self._respond, methods=["GET", "POST"])
        self.http = http_server(Starlette(routes=[route]), LIMITS, self.listener)

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def serve_forever(self) -> None:
        """Answer requests until Ctrl-C, or until `http.should_exit` is set from another thread."""
        self.http.run(sockets=[self.listener])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.listener.close()

    async def _respond(self, request: Request) -> Response:
        """Answer with a file of the page, or by one of the functions."""
        routes, name = self._route(request)
        answer = routes.post.get(name) if request.method == "POST" else routes.get.get(name)
        if answer is not None:
            return _json(*await self._answer(routes, answer, request))
        if request.method == "POST" or name not in FILES:
            return _json({"error": "no such page"}, 404)
        file, kind = FILES[name]
        package = PACKAGE if file.startswith("base.") else routes.package
        return Response(files(package).joinpath(file).read_bytes(), headers=HEADERS, media_type=kind)

    async def _answer(self, routes: Routes, answer: Answer, request: Request) -> tuple[Values, int]:
        try:
            await run_in_threadpool(routes.check)
            values = dict(request.query_params) if request.method == "GET" else await _body(request)
            return await run_in_threadpool(answer, values), 200
        except (UserError, RunError) as error:
            return {"error": str(error)}, 400
        except OSError as error:
            what = f"cannot read {error.filename or 'the files'}: {error.strerror or error}"
            return {"error": f"{what}; check the folder, load again"}, 400
        except (ValueError, TypeError, RecursionError, ClientDisconnect):
            return {"error": "the request cannot be read; load the page again"}, 400

    def _route(self, request: Request) -> tuple[Routes, str]:
        """Contents of the page, and path below it; nothing if the token or the host is wrong."""
        token, slash, path = request.path_params["path"].partition("/")
        is_ours = hmac.compare_digest(token.encode(errors="replace"), self.token.encode())
        if not (is_ours and slash) or not self.hosts.allows_host(request.headers.get("Host", "")):
            return NOTHING, "?"
        page, slash, name = path.partition("/")
        if not slash:
            return self.pages[""], page
        return (self.pages[page], name) if page in self.pages else (NOTHING, "?")


def _json(value: Values, status: int) -> Response:
    content = json.dumps(value)  # JSONResponse refuses half of a surrogate pair, which an error may repeat
    return Response(content, status, HEADERS, "application/json")


async def _body(request: Request) -> Values:
    size = int(request.headers.get("Content-Length") or 0)
    if not 0 < size <= MAX_BODY:
        raise ValueError("no body, or a large one")
    body = json.loads(await request.body())
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body
