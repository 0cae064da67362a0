"""A web server on loopback that misbehaves in every way for which the download has a reject reason."""

import contextlib
import gzip
import http.server
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PAGE = b"<html><body><p>A page.</p></body></html>"


@dataclass
class Site:
    """A running server.

    Attributes:
        address: `127.0.0.1:PORT`.
        hits: (host, path) -> requests.
        starts: (host, time) of every request, in order.
        robots: host -> (status, text) of its robots.txt; 404 where there is none.
        at_once: most requests that were in flight at a time, by host.
        handlers: path -> function that answers; tests may add to it.
    """

    address: str = ""
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    starts: list[tuple[str, float]] = field(default_factory=list)
    robots: dict[str, tuple[int, str]] = field(default_factory=dict)
    at_once: Counter[str] = field(default_factory=Counter)
    handlers: dict[str, Callable[["Handler"], None]] = field(default_factory=dict)
    _open: Counter[str] = field(default_factory=Counter)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        site, host, path = self.site, self.headers["Host"], self.path.partition("?")[0]
        site.hits[host, path] += 1
        site.starts.append((host, time.monotonic()))
        site._open[host] += 1
        site.at_once[host] = max(site.at_once[host], site._open[host])
        try:
            with contextlib.suppress(ConnectionError):
                if path == "/robots.txt" and path not in site.handlers:
                    status, text = site.robots.get(host, (404, ""))
                    self.answer(text.encode(), "text/plain", status)
                else:
                    site.handlers.get(path, ok)(self)
        finally:
            site._open[host] -= 1

    def answer(self, body: bytes, kind: str = "text/html", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def head(self, **headers: str) -> None:
        """Status and headers alone; the connection ends the body."""
        self.send_response(200)
        for name, value in {"Content_Type": "text/html", "Connection": "close", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.close_connection = True

    def redirect(self, target: str, status: int = 302) -> None:
        self.answer(b"", status=status, Location=target)


def raw(h: Handler, data: bytes) -> None:
    h.wfile.write(data)
    h.close_connection = True


def ok(h: Handler) -> None:
    h.answer(PAGE, "text/html; charset=utf-8")


def drip(h: Handler) -> None:
    h.head()
    for _ in range(1000):
        h.wfile.write(b"x")
        time.sleep(0.05)


def endless(h: Handler) -> None:
    h.head()
    for _ in range(100_000):
        h.wfile.write(b"x" * 4096)


def heals(h: Handler) -> None:
    if h.site.hits[h.headers["Host"], "/heals"] % 3:
        h.answer(b"", status=503, Retry_After="0")
    else:
        ok(h)


def cut(h: Handler) -> None:
    h.head(Content_Length="1000")
    h.wfile.write(PAGE)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


HANDLERS: dict[str, Callable[[Handler], None]] = {
    "/gone": lambda h: h.answer(b"", status=404),
    "/forbidden": lambda h: h.answer(b"", status=403),
    "/broken": lambda h: h.answer(b"", status=500),
    "/later": lambda h: h.answer(b"", status=429, Retry_After="9999"),
    "/heals": heals,
    "/cut": cut,
    "/nonsense": lambda h: raw(h, b"\x00\x01 nonsense\r\n\r\n"),
    "/hop1": lambda h: h.redirect("hop2", 301),
    "/hop2": lambda h: h.redirect("http://b.test/hop3", 307),
    "/hop3": lambda h: h.redirect("//a.test/page#part", 303),
    "/loop1": lambda h: h.redirect("/loop2"),
    "/loop2": lambda h: h.redirect("/loop1"),
    "/chain": lambda h: h.redirect(f"/chain?{int(h.path.partition('?')[2] or 0) + 1}"),
    "/inside": lambda h: h.redirect("http://169.254.169.254/latest/meta-data/"),
    "/file": lambda h: h.redirect("file:///etc/passwd"),
    "/other-port": lambda h: h.redirect("http://a.test:22/"),
    "/to-private": lambda h: h.redirect("/private/page"),
    "/bad-target": lambda h: h.redirect("http://[zz/"),
    "/drip": drip,
    "/endless": endless,
    "/announced": lambda h: h.head(Content_Length=str(10**12)),
    "/gzip": lambda h: h.answer(gzip.compress(PAGE), Content_Encoding="gzip"),
    "/gzip-members": lambda h: h.answer(gzip.compress(PAGE[:9]) + gzip.compress(PAGE[9:]), Content_Encoding="x-gzip"),
    "/gzip-tail": lambda h: h.answer(gzip.compress(PAGE) + b"<!-- cached -->", Content_Encoding="gzip"),
    "/gzip-byte": lambda h: h.answer(gzip.compress(PAGE) + b"\x1f", Content_Encoding="gzip"),
    "/gzip-twice": lambda h: h.answer(gzip.compress(gzip.compress(PAGE)), Content_Encoding="gzip, gzip"),
    "/gzip-named-twice": lambda h: h.answer(gzip.compress(PAGE), Content_Encoding="gzip, gzip"),
    "/deflate-gzip": lambda h: h.answer(gzip.compress(zlib.compress(PAGE)), Content_Encoding="deflate, gzip"),
    "/cut-inside": lambda h: h.answer(gzip.compress(zlib.compress(PAGE)[:-9]), Content_Encoding="deflate, gzip"),
    "/bomb-inside": lambda h: h.answer(gzip.compress(gzip.compress(bytes(50_000_000))), Content_Encoding="gzip, gzip"),
    "/many-codings": lambda h: h.answer(PAGE, Content_Encoding="gzip, gzip, gzip, gzip"),
    "/deflate": lambda h: h.answer(zlib.compress(PAGE), Content_Encoding="deflate"),
    "/raw-deflate": lambda h: h.answer(raw_deflate(PAGE), Content_Encoding="deflate"),
    "/bomb": lambda h: h.answer(gzip.compress(b" " * 50_000_000), Content_Encoding="gzip"),
    "/no-gzip": lambda h: h.answer(PAGE, Content_Encoding="gzip"),
    "/cut-gzip": lambda h: h.answer(gzip.compress(PAGE)[:-12], Content_Encoding="gzip"),
    "/brotli": lambda h: h.answer(PAGE, Content_Encoding="br"),
    "/image": lambda h: h.answer(b"\x89PNG", "image/png"),
    "/no-type": lambda h: h.answer(PAGE, ""),
    "/no-type-image": lambda h: h.answer(b"\x89PNG\r\n\x1a\n" + bytes(100), ""),
    "/no-type-text": lambda h: h.answer(b"not a page, and no tag in it", ""),
    "/octets": lambda h: h.answer(PAGE, "application/octet-stream"),
    "/cut-chunk": lambda h: raw(
        h, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhi"
    ),
    "/long-header": lambda h: raw(h, b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 9000 + b"\r\n\r\n"),
    "/xhtml": lambda h: h.answer(PAGE, "Application/XHTML+xml;charset=ISO-8859-1"),
}


@contextlib.contextmanager
def running_site(host: str = "127.0.0.1", port: int = 0) -> Iterator[Site]:
    """Serve at a loopback address until the block ends."""
    site = Site(handlers=dict(HANDLERS))
    handler = type("BoundHandler", (Handler,), {"site": site})

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *args: object) -> None:
            pass

    with Server((host, port), handler) as server:
        site.address = f"{host}:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield site
        server.shutdown()


@contextlib.contextmanager
def sites_on_one_port(first: str, second: str) -> Iterator[tuple[Site, Site]]:
    """Serve at two loopback addresses on the same port until the block ends.

    The kernel picks the port for `first`; where another process holds it at `second`, another port is tried.
    """
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            one = stack.enter_context(running_site(first))
            with contextlib.suppress(OSError):
                two = stack.enter_context(running_site(second, int(one.address.rpartition(":")[2])))
                break
        else:
            raise OSError(f"no port is free at both {first} and {second}")
        yield one, two
