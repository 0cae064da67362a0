"""The demo site's server: many virtual hosts on one port of 127.0.0.1, a thread a connection."""

import contextlib
import http.server
import threading
import time
from collections import Counter

from flows.demo import catalogue
from flows.demo.catalogue import JOURNAL
from flows.demo.pages import NoPage, import_ahead, page

HUGE = 64 * 2**20  # bytes; more than any cap
SLOW_SECONDS = 120.0
REDIRECTS = {
    "/moved.html": "/moved/again.html",
    "/moved/again.html": "/moved/at-last.html",
    "/moved/at-last.html": "/about.html",
}
LOOP = {"/loop.html": "/loop/round.html", "/loop/round.html": "/loop.html"}
ROBOTS = "User-agent: *\nDisallow: /private/\n"


class Server(http.server.ThreadingHTTPServer):
    """Holds what the handlers share."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self._ahead: threading.Thread | None = None

    def import_ahead(self) -> None:
        """Begin importing at the first page: a run that is all cached reads the list alone, and pays for nothing."""
        if self._ahead is None:
            self._ahead = threading.Thread(target=import_ahead, daemon=True)
            self._ahead.start()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for every host that catalogue names, and hands out the list at /urls.txt."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer one request."""
        with contextlib.suppress(ConnectionError):  # a reader that has had enough
            self._answer(self.headers.get("Host", "").lower(), self.path)

    def do_HEAD(self) -> None:
        """Answer a request for the headers alone."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing is logged: the download's ledger says it all."""

    def _answer(self, host: str, path: str) -> None:
        if path == "/urls.txt":
            self._send(200, catalogue.url_list().encode(), "text/plain; charset=utf-8")
        elif path == "/robots.txt":
            self._send(200 if host == JOURNAL else 404, ROBOTS.encode() if host == JOURNAL else b"", "text/plain")
        elif host == JOURNAL and self._misbehave(path):
            pass
        else:
            self.server.import_ahead()
            try:
                self._send(200, page(host, path))
            except NoPage:
                self._send(404, b"<!DOCTYPE html><title>Not found</title><p>There is no such page.")

    def _misbehave(self, path: str) -> bool:
        """The journal's odd pages. Returns False for the ordinary ones."""
        target = REDIRECTS.get(path) or LOOP.get(path)
        if target:
            self._send(302, b"", location=target)
        elif path == "/flaky.html":
            self.server.asked[path] += 1
            if self.server.asked[path] > 1:
                return False
            self._send(500, b"<!DOCTYPE html><p>An error occurred.")
        elif path == "/feed":
            self._send(200, b'{"entries": []}', "application/json")
        elif path == "/huge.html":
            self._stream(b"<p>" + b"and so on " * 6553, HUGE // 65536, 0.0)
        elif path == "/slow.html":
            self._stream(b".", int(SLOW_SECONDS / 0.25), 0.25)
        else:
            return False
        return True

    def _send(self, status: int, body: bytes, kind: str = "text/html; charset=utf-8", location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, piece: bytes, times: int, pause: float) -> None:
        """A page that does not say how long it is."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for _ in range(times if self.command != "HEAD" else 0):
            self.wfile.write(piece)
            time.sleep(pause)
