"""Server of the demo site: many virtual hosts on one port of 127.0.0.1, one thread per connection.

`python -m flows.demo --parent PID` prints one line of JSON with its port, then serves until its parent ends or it is
killed.
"""

import argparse
import contextlib
import functools
import http.server
import json
import os
import sys
import threading
import time
import warnings
from collections import Counter

from flows.demo import site_index
from flows.demo.pages import PageNotFoundError, import_packages, render_page
from flows.demo.site_index import JOURNAL
from gpt2train import end_imports
from gpt2train.store.process import die_with_parent

HUGE_BYTES = 64 * 2**20  # larger than any `download.max_bytes`
SLOW_SECONDS = 120.0
REDIRECTS = {
    "/moved.html": "/moved/again.html",
    "/moved/again.html": "/moved/at-last.html",
    "/moved/at-last.html": "/about.html",
    "/loop.html": "/loop/round.html",
    "/loop/round.html": "/loop.html",
}
ROBOTS = "User-agent: *\nDisallow: /private/\n"


class Server(http.server.ThreadingHTTPServer):
    """HTTP server with the state that its handlers share."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: Counter[str] = Counter()


@functools.cache
def start_imports() -> None:
    """Start to import the packages on the first page request; a fully cached run requests only the URL list."""
    threading.Thread(target=import_packages, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    """Handler for all hosts of the site index; it serves the URL list at /urls.txt."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Answer one request."""
        with contextlib.suppress(ConnectionError):  # the client closed the connection
            self._answer(self.headers.get("Host", "").lower(), self.path)

    def do_HEAD(self) -> None:
        """Answer a request for the headers only."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Log nothing; the download records every request."""

    def _answer(self, host: str, path: str) -> None:
        if path == "/urls.txt":
            self._send(200, site_index.url_list().encode(), "text/plain; charset=utf-8")
        elif path == "/robots.txt":
            self._send(*((200, ROBOTS.encode()) if host == JOURNAL else (404, b"")), "text/plain")
        elif host == JOURNAL and self._answer_oddly(path):
            pass
        else:
            start_imports()
            try:
                self._send(200, render_page(host, path))
            except PageNotFoundError:
                self._send(404, b"<!DOCTYPE html><title>Not found</title><p>There is no such page.")

    def _answer_oddly(self, path: str) -> bool:
        """Answer for the misbehaving pages of the journal. Returns False for ordinary pages."""
        if target := REDIRECTS.get(path):
            self._send(302, b"", location=target)
        elif path == "/flaky.html":
            self.server.requests[path] += 1
            if self.server.requests[path] > 1:
                return False
            self._send(500, b"<!DOCTYPE html><p>An error occurred.")
        elif path == "/feed":
            self._send(200, b'{"entries": []}', "application/json")
        elif path == "/huge.html":
            self._stream(b"<p>" + b"and so on " * 6553, HUGE_BYTES // 65536, 0.0)
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

    def _stream(self, chunk: bytes, times: int, pause: float) -> None:
        """Send a page of unknown length: `times` chunks with `pause` seconds after each."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for _ in range(times if self.command != "HEAD" else 0):
            self.wfile.write(chunk)
            time.sleep(pause)


def main() -> None:
    """Serve the site."""
    parser = argparse.ArgumentParser(prog="python -m flows.demo", description="Serve the demo site on 127.0.0.1.")
    parser.add_argument("--parent", type=int, help="end when this process, which must have started this one, ends")
    given = parser.parse_args()
    end_imports()
    if given.parent is not None:
        die_with_parent(given.parent)
    warnings.simplefilter("ignore")  # deprecated modules warn on import
    with Server() as server, contextlib.suppress(KeyboardInterrupt):
        print(json.dumps({"port": server.server_port}), flush=True)
        with open(os.devnull, "w") as devnull:  # noqa: PTH123 - discards the output of modules on import
            sys.stdout = devnull
            server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
