"""HTTP server of the labelling page, on a loopback address.

Every path begins with a random token, which only the person at the terminal knows: other users of the machine and web
pages in the same browser cannot read documents or vote. The `Host` header is checked against DNS rebinding.
"""

import hmac
import json
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from gpt2train.errors import RunError, UserError
from gpt2train.quality.session import Session
from gpt2train.serve.hosts import allowed_hosts

HOST = "127.0.0.1"
MAX_BODY = 1 << 16  # bytes
IDLE_SECONDS = 30  # after which a connection that sends nothing is closed
PAGE = f"{__package__}.page"
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "script.js": ("script.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    # No inline scripts: one in a document would not run even if it were inserted as HTML.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LabelServer(ThreadingHTTPServer):
    """Server of one session; `url` is the address of the page.

    Raises:
        UserError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        self.session, self.token = session, secrets.token_urlsafe(24)
        self.hosts = allowed_hosts(HOST, HOST)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UserError(
                f"cannot listen at {HOST}:{port}: {error.strerror}; give another --port, 0 takes a free one"
            ) from error

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that the browser closed."""


class Handler(BaseHTTPRequestHandler):
    """One request: a file of the page, the state, a vote, or a training."""

    server: LabelServer
    timeout = IDLE_SECONDS
    server_version, sys_version = "gpt2train", ""

    def do_GET(self) -> None:
        """Answer with a file of the page or the state."""
        name = self._name()
        if name == "state":
            self._send_json(self.server.session.state())
        elif name in FILES:
            file, kind = FILES[name]
            self._send(HTTPStatus.OK, files(PAGE).joinpath(file).read_bytes(), kind)
        else:
            self._send_json({"error": "no such page"}, HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Store a vote or train a model."""
        name = self._name()
        if name not in ("vote", "train"):
            self._send_json({"error": "no such page"}, HTTPStatus.NOT_FOUND)
            return
        try:
            body = self._body()
            if name == "vote":
                answer = self.server.session.vote(str(body.get("id")), body.get("vote"))
            else:
                answer = self.server.session.train(float(body.get("precision", "nan")))
        except (UserError, RunError) as error:
            self._send_json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except (ValueError, TypeError, RecursionError):
            self._send_json({"error": "the request cannot be read; load the page again"}, HTTPStatus.BAD_REQUEST)
        else:
            self._send_json(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the paths have the token."""

    def _name(self) -> str | None:
        """Path below the token; None if the token or the host is wrong."""
        if not self.server.hosts.allows_host(self.headers.get("Host") or ""):
            return None
        token, slash, name = self.path.removeprefix("/").partition("/")
        is_ours = hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode())
        return name.partition("?")[0] if is_ours and slash else None

    def _body(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 < size <= MAX_BODY:
            raise ValueError("no body, or a large one")
        body = json.loads(self.rfile.read(size))
        if not isinstance(body, dict):
            raise ValueError("not an object")
        return body

    def _send_json(self, value: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for header, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)
