"""HTTP responses written byte by byte to break a client, and a loopback server that sends them."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
HI = b"Content-Length: 2\r\n\r\nhi"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def typed(value: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: " + value + b"\r\n" + HI


def moved(location: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"


def busy(retry_after: bytes) -> bytes:
    return b"HTTP/1.1 503 No\r\nRetry-After: " + retry_after + b"\r\nContent-Length: 0\r\n\r\n"


def forever(head: bytes, piece: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.chain([head], itertools.repeat(piece))


KEPT = ("",)
PROTOCOL = ("protocol_error",)
NOWHERE = ("malformed", "dns_failed", "not_public_address")
# Name -> (what is sent, the reasons that are right for it).
ANSWERS: dict[str, tuple[bytes | Callable[[], Iterator[bytes]], tuple[str, ...]]] = {
    "type: continued charset": (typed(b"text/html;charset*;charset*0"), KEPT),
    "type: charset of bytes": (typed(b"text/html; charset=\xc3\xa9\x80"), KEPT),
    "type: number of 4,400 digits": (typed(b"text/html; charset*" + b"1" * 4400 + b"=x"), KEPT),
    "type: NUL in the charset's charset": (typed(b"text/html; charset*=%00''x"), KEPT),
    "type: line ends in the charset": (typed(b"text/html; charset*=utf-8''x%0d%0a%0d%0aZZZ"), KEPT),
    "retry-after: year 99999999999": (busy(b"Mon, 01 Jan 99999999999 00:00:00 GMT"), ("http_error",)),
    "retry-after: 5,000 digits": (busy(b"9" * 5000), ("http_error",)),
    "length: 5,000 digits": (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nhi", PROTOCOL),
    "length: negative": (OK + b"Content-Length: -5\r\n\r\nhi", PROTOCOL),
    "length: two of them": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", PROTOCOL),
    "length: hexadecimal": (OK + b"Content-Length: 0x2\r\n\r\nhi", PROTOCOL),
    "status 99": (b"HTTP/1.1 99 OK\r\nContent-Type: text/html\r\n\r\nhi", PROTOCOL),
    "status 1000": (b"HTTP/1.1 1000 OK\r\nContent-Type: text/html\r\n\r\nhi", PROTOCOL),
    "status 101": (b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi", ("http_error",)),
    "HTTP/0.9": (b"hello", PROTOCOL),
    "encoding: brotli": (OK + b"Content-Encoding: br\r\n" + HI, ("content_encoding",)),
    "encoding: gzip twice": (OK + b"Content-Encoding: gzip, gzip\r\n" + HI, ("content_encoding",)),
    "encoding: bytes": (OK + b"Content-Encoding: \xff\xfe\r\n" + HI, ("",)),
    "encoding: none": (OK + b"Content-Encoding: none\r\n" + HI, ("",)),
    "encoding: a charset": (OK + b"Content-Encoding: UTF-8, identity\r\n" + HI, ("",)),
    "location: empty": (moved(b""), ("redirect_loop",)),
    "location: bytes": (moved(b"http://\xff\xfe.example/"), NOWHERE),
    "location: port 99999": (moved(b"http://a:99999/"), ("malformed",)),
    "location: international": (moved("http://a\u0301.\u0130stanbul.example/".encode()), NOWHERE),
    "location: label of 200": (moved(b"http://" + b"a" * 200 + b".example/"), ("malformed",)),
    "location: empty label": (moved(b"http://a..b/"), ("malformed",)),
    "location: file": (moved(b"file:///etc/passwd"), ("scheme_forbidden",)),
    "location: gopher": (moved(b"gopher://127.0.0.1:25/x"), ("scheme_forbidden",)),
    "location: web socket": (moved(b"ws://127.0.0.1/x"), ("scheme_forbidden",)),
    "location: metadata": (moved(b"http://169.254.169.254/latest/meta-data/"), ("not_public_address",)),
    "location: NAT64": (moved(b"http://[64:ff9b::a9fe:a9fe]/"), ("not_public_address",)),
    "location: half an IPv6": (moved(b"http://[::1"), ("malformed",)),
    "location: NUL": (moved(b"http://a.example/%00\xc2\x85"), NOWHERE),
    "chunk: negative": (CHUNKED + b"-5\r\nhi\r\n0\r\n\r\n", PROTOCOL),
    "chunk: huge": (CHUNKED + b"ffffffffffffffffff\r\nhi\r\n0\r\n\r\n", PROTOCOL),
    "cookie: bytes and a date": (OK + b"Set-Cookie: \xff=\xfe; expires=Mon, 99999999999\r\n" + HI, KEPT),
    "cookie: quoted": (OK + b'Set-Cookie: a="\\777\\' + b"x" * 3000 + b"\r\n" + HI, KEPT),
    "language: bytes": (OK + b"Content-Language: \xff\r\n" + HI, KEPT),
    "link: broken": (OK + b"Link: <http://[>; rel=\xff\r\n" + HI, KEPT),
    "endless: headers": (forever(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"v" * 4000 + b"\r\n"), PROTOCOL),
    "endless: header": (forever(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536), PROTOCOL),
    "endless: trailers": (forever(CHUNKED + b"2\r\nhi\r\n0\r\n", b"X: " + b"v" * 4000 + b"\r\n"), PROTOCOL),
    "endless: early hints": (forever(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 100), ("deadline",)),
    "endless: chunk extension": (forever(CHUNKED + b"2;", b"a" * 65536), ("deadline",)),
}


@contextlib.contextmanager
def answering() -> Iterator[str]:
    """Serve `ANSWERS` at 127.0.0.1; the first label of the asked host, `c7`, is the number of the answer."""
    sent = [answer for answer, _ in ANSWERS.values()]

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = connection.recv(65536)
            number = int(head.lower().partition(b"\nhost: c")[2].partition(b".")[0])
            what = sent[number]
            for piece in [what] if isinstance(what, bytes) else what():
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
