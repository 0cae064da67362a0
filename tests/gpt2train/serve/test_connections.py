"""Connections of faulty clients: foreign Host headers, partial requests, unread bodies, idle ones, many at once."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.adversarial_clients import KINDS
from benchmarks.soak import run
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.serve.connection import RESERVED_FILES, connection_limits
from gpt2train.serve.hosts import allowed_hosts
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.serve.local_server import Gate, Running, running, small_model
from tests.processes import wait_for

KEY = "a key that nobody may see"
MiB = 2**20
BODY = json.dumps({"prompts": ["a"], "tokens_to_generate": 1}).encode()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a key."""
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text(KEY)
    with running(settings=ServeSettings(key_file=key)) as one:
        yield one


@pytest.fixture(scope="module")
def short() -> Iterator[Running]:
    """A server with time limits short enough for a test."""
    with running(settings=ServeSettings(head_seconds=1, body_seconds=1.5, deadline=2)) as one:
        yield one


def connect(server: Running, raw: bytes = b"") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=60)
    made.sendall(raw)
    return made


def read(connection: socket.socket) -> bytes:
    raw = b""
    try:
        while part := connection.recv(65536):
            raw += part
    except ConnectionResetError:
        pass
    connection.close()
    return raw


def status(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1]) if raw else 0


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode()


def test_a_foreign_host_header_is_refused(server: Running) -> None:
    """DNS rebinding: to the browser, a page under such a name has the origin of this server."""
    body = json.dumps({"prompt": "a", "max_tokens": 1})
    port = server.url.rpartition(":")[2]
    foreign = [
        "rebound.evil.example",
        f"rebound.evil.example:{port}",
        "localhost.evil.example",
        "localhost@evil.example",
    ]
    foreign += ["127.0.0.1.evil.example", "localhost@evil.example", "192.168.0.7", ""]
    own = ["localhost", f"LOCALHOST.:{port}", "127.0.0.1", f"127.0.0.1:{port}", f"[::1]:{port}"]
    own += ["localhost:9"]  # a forwarded port
    for host in foreign + own:
        expected = 200 if host in own else 421
        for method, path in (("GET", "/"), ("GET", "/v1/models"), ("GET", "/health"), ("POST", "/v1/completions")):
            headers = {"Host": host, "Content-Type": "application/json"}
            answer = server.client.request(method, path, content=body if method == "POST" else None, headers=headers)
            assert answer.status_code == expected, (host, method, path)
            assert "--allowed-host" in answer.text or expected == 200
    without = connect(server, b"GET /health HTTP/1.0\r\n\r\n")  # as health checks of load balancers send it
    assert status(read(without)) == 200


def test_head_is_get_without_the_body(server: Running) -> None:
    """As monitors send it."""
    for path, expected in (
        ("/health", 200),
        ("/", 200),
        ("/v1/models", 200),
        ("/nothing", 404),
        ("/v1/completions", 405),
    ):
        raw = read(connect(server, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()))
        assert status(raw) == expected and raw.endswith(b"\r\n\r\n"), path
        assert int(raw.lower().partition(b"content-length: ")[2].partition(b"\r")[0]) > 0


def test_a_page_of_another_origin_is_refused(server: Running) -> None:
    own = (server.url, "http://localhost:3000")
    for origin in ("https://evil.example", "http://evil.example:5000", "null", "file://", "http://[", *own):
        body = {"prompts": ["a"], "tokens_to_generate": 1}
        answer = server.client.put("/api", json=body, headers={"Origin": origin})
        assert answer.status_code == (200 if origin in own else 403), origin
        assert "--allowed-host" in answer.text or origin in own


def test_allowed_hosts_are_accepted() -> None:
    assert ServeSettings().host == "127.0.0.1"
    loopback = allowed_hosts("127.0.0.1", "127.0.0.1", ["Model.Example", "[fd00::1]"])
    assert loopback.allows_host("model.example:443") and loopback.allows_host("[FD00::1]")
    assert loopback.allows_origin("https://model.example") and not loopback.allows_origin("ftp://model.example")
    assert not loopback.allows_host("other.example") and not loopback.allows_host("10.0.0.1")
    assert allowed_hosts("::1", "localhost").allows_host("127.0.0.1")
    everywhere = allowed_hosts("0.0.0.0", "0.0.0.0")
    for host in ("10.0.0.1:5000", "[fe80::1%eth0]:5000", "localhost", socket.gethostname()):
        assert everywhere.allows_host(host), host
    assert not everywhere.allows_host("evil.example")
    named = allowed_hosts("10.0.0.1", "node-1.example")
    assert named.allows_host("node-1.example:5000") and not named.allows_host("node-2.example")
    assert allowed_hosts("127.0.0.1", "127.0.0.1", ["*"]).allows_host("any.example")
    for wrong in ("http://a.example", "a.example:5000", "", "a b", "*.example"):
        with pytest.raises(ValidationError, match="allowed_host"):
            ServeSettings(allowed_host=(wrong,))


@given(st.text() | st.from_regex(r"\A[\[\]:@./%0-9a-z-]{0,30}\Z"))
@settings(max_examples=300, deadline=None)
def test_any_host_header_is_checked_without_an_exception(header: str) -> None:
    hosts = allowed_hosts("127.0.0.1", "127.0.0.1")
    assert hosts.allows_host(header) in (True, False)
    assert hosts.allows_origin(header) in (True, False)
    assert not hosts.allows_host(f"{header}.evil.example")


def test_the_authorization_scheme_is_case_insensitive(keyed: Running) -> None:
    right = (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY}")
    for sent in (*right, f"Basic {KEY}", KEY, "Bearer", f"Bearer {KEY}x"):
        answer = keyed.client.get("/v1/models", headers={"Authorization": sent})
        assert answer.status_code == (200 if sent in right else 401), sent


def test_no_body_is_read_without_a_key_or_a_known_path(keyed: Running) -> None:
    """The answer does not wait for the body."""
    large = f"Content-Length: {8 * MiB}"
    for method, path, expected in (
        ("POST", "/v1/completions", 401),
        ("PUT", "/api", 401),
        ("POST", "/", 405),
        ("POST", "/nothing", 404),
        ("GET", "/health", 200),
        ("POST", "/v1/nothing", 401),
    ):
        connection = connect(keyed, head(method, path, large) + b"x" * 1000)
        assert status(connection.recv(65536)) == expected, path  # earlier it was 408 after body_seconds
        connection.close()
    expecting = connect(keyed, head("PUT", "/api", large, "Expect: 100-continue"))
    raw = read(expecting)  # closed: the client may send its body after all
    assert status(raw) == 401 and b"connection: close" in raw.lower() and b" 100 " not in raw


def test_a_discarded_body_leaves_the_connection_usable(keyed: Running) -> None:
    host, port = keyed.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    for _ in range(2):
        connection.request("POST", "/v1/completions", b"x" * MiB, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (401, True)
    connection.close()


def test_clients_without_the_key_fill_no_memory(keyed: Running) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    connections = []
    for path in ["/", "/v1/completions"] * 5:
        connections.append(connect(keyed, head("POST", path, f"Content-Length: {8 * MiB}")))
        try:
            for _ in range(7):
                connections[-1].sendall(b"x" * MiB)
        except OSError:
            pass
    grown = 0
    for _ in range(15):
        time.sleep(0.1)
        grown = max(grown, process.memory_info().rss - before)  # the server is a thread of this process
    for connection in connections:
        connection.close()
    assert grown < 22 * MiB, grown  # of 70; 40 where bodies were kept


@pytest.mark.exhaustive
def test_the_total_size_of_all_bodies_is_bounded() -> None:
    with running(settings=ServeSettings(max_buffered=3 * MiB, max_body=2 * MiB)) as server:
        guard_full = [connect(server, head("PUT", "/api", f"Content-Length: {2 * MiB}")) for _ in range(3)]
        for connection in guard_full:
            connection.sendall(b"x" * (2 * MiB - 1))
        refused = [one for one in guard_full if _readable(one)]
        assert len(refused) >= 1
        raw = refused[0].recv(65536)
        assert status(raw) == 503 and b"retry-after" in raw.lower()
        for connection in guard_full:
            connection.close()
        body = {"prompts": ["a"], "tokens_to_generate": 1}
        wait_for(lambda: server.client.put("/api", json=body).status_code == 200, 60, "the memory to be free again")


def _readable(connection: socket.socket, seconds: float = 3) -> bool:
    connection.settimeout(seconds)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def test_idle_connections_and_partial_heads_are_closed(short: Running) -> None:
    silent = connect(short)
    half = connect(short, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: ")
    dripping = connect(short, b"GET /v1/models HTTP/1.1\r\n")
    after_a_request = [connect(short, head("GET", "/health")) for _ in range(3)]
    for one in after_a_request:
        assert status(one.recv(65536)) == 200
        with contextlib.suppress(OSError):  # this process was stopped, and the connection was idle for too long
            one.sendall(b"GET /hea")
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(read, one) for one in (silent, half, dripping, *after_a_request)]
        try:
            for _ in range(300):
                dripping.sendall(b"X: y\r\n")  # each byte comes in time; the head does not
                time.sleep(0.1)
        except OSError:
            pass
        found = [answer.result(60) for answer in answers]
    assert found[0] == b""
    assert status(found[1]) == 408 and b"head" in found[1] and json.loads(found[1].partition(b"\r\n\r\n")[2])
    assert status(found[2]) in (0, 408)  # 0 where the answer was lost in the reset that a byte too many caused
    assert 408 in map(status, found[3:])
    assert short.client.get("/health").status_code == 200


def test_the_rest_of_a_discarded_body_has_a_time_limit(short: Running) -> None:
    """A client keeps sending single bytes after its answer."""
    connection = connect(short, head("POST", "/nothing", "Content-Length: 1000"))
    assert status(connection.recv(65536)) == 404
    connections = short.server.http.server_state.connections
    assert connections
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            connection.sendall(b"x")
            time.sleep(0.1)
    except OSError:
        pass
    assert time.monotonic() < end
    connection.close()


def test_an_unread_answer_has_a_time_limit() -> None:
    with running(settings=ServeSettings(deadline=1.5, body_seconds=0.5, head_seconds=60)) as server:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        host, port = server.url.removeprefix("http://").split(":")
        made.connect((host, int(port)))
        connections = server.server.http.server_state.connections
        wait_for(lambda: len(connections) == 1, 60, "the connection")
        [connection] = connections
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made.sendall(head("GET", "/openapi.json") * 200)
        wait_for(lambda: connection.transport.get_write_buffer_size() > 0, 60, "an answer that waits for its reader")
        wait_for(lambda: not connections, 60, "the end of the connection")
        assert connection.transport.is_closing()
        made.close()


def test_conflicting_lengths_close_the_connection(server: Running) -> None:
    """RFC 9112 6.1: it is answered by its chunks, and nothing that follows is a request."""
    body = json.dumps({"prompts": ["a"], "tokens_to_generate": 1}).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    lines = ("Content-Type: application/json", "Content-Length: 4", "Transfer-Encoding: chunked")
    for path, expected in (("/api", 200), ("/nothing", 404)):
        smuggled = head("GET", "/health")
        raw = read(connect(server, head("PUT", path, *lines) + chunked + smuggled))
        assert raw.count(b"HTTP/1.1 ") == 1
        assert status(raw) == expected and b"connection: close" in raw.lower()


def test_more_connections_than_allowed_close_those_that_wait_longest() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    limits = ServeSettings(max_batch_size=1, max_connections=6, head_seconds=60, body_seconds=60)
    with running(gate, limits) as server, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(server.client.post, "/v1/completions", json={"prompt": "a", "max_tokens": 9})
        wait_for(lambda: server.server.service.batcher.rows == 1, 60, "the request to run")
        connections = server.server.http.server_state.connections
        half = [connect(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ") for _ in range(20)]
        half += [connect(server, head("PUT", "/api", "Content-Length: 9")) for _ in range(20)]
        for _ in range(3):
            assert status(read(connect(server, head("GET", "/health", "Connection: close")))) == 200
        assert len(connections) <= 6
        assert not any(_readable(one, 0.05) for one in half[-2:]) and all(read(one) == b"" for one in half[:30])
        lines = ("Connection: close", "Content-Type: application/json", f"Content-Length: {len(BODY)}")
        others = []
        for number in range(1, 6):
            others.append(connect(server, head("PUT", "/api", *lines) + BODY))
            wait_for(lambda: server.server.service.batcher.waiting == number, 60, "the request to wait")  # noqa: B023
        raw = read(connect(server, head("GET", "/health")))
        assert status(raw) == 503 and b"retry-after: 1" in raw.lower() and b"too many connections" in raw
        gate.allow(9 + 5)
        assert answered.result().status_code == 200
        assert [status(read(one)) for one in others] == [200] * 5


def test_out_of_files_is_said_once_and_closes_connections(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    half = [connect(server, b"GET /") for _ in range(5)]
    connections = server.server.http.server_state.connections
    wait_for(lambda: len(connections) >= 5, 60, "the connections")
    context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    loop = next(iter(connections)).loop
    for _ in range(300):
        loop.call_soon_threadsafe(loop.call_exception_handler, dict(context))
    assert [read(one) for one in half] == [b""] * 5
    assert server.client.get("/health").status_code == 200
    assert caplog.text.count("Too many open files") == 1 and "Traceback" not in caplog.text


def test_connections_and_backlog_fit_the_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.Process.num_fds", lambda _: 12)
    for files, maximum, least, most in (
        *((64, 1000, 8, 39), (1024, 1000, 600, 999), (100_000, 1000, 1000, 1000), (100_000, 5, 5, 5), (1, 9, 1, 1)),
    ):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        limit, backlog = connection_limits(maximum)
        assert least <= limit <= most and 1 <= backlog <= 128, files
        assert limit + backlog + 12 + RESERVED_FILES <= max(files, 30), files


def test_websockets_are_refused(server: Running) -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + "a" * 24)
    connection = connect(server, head("GET", "/v1/models", *lines))
    assert status(connection.recv(65536)) == 200
    connection.close()


def test_a_running_request_may_take_longer_than_the_head_timeout() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    with (
        running(gate, ServeSettings(max_batch_size=1, head_seconds=0.4, body_seconds=0.4)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        batcher = server.server.service.batcher

        def submit() -> Future[httpx.Response]:
            sent = pool.submit(server.client.post, "/v1/completions", json={"prompt": "a", "max_tokens": 3})
            wait_for(lambda: sent.done() or batcher.rows == 1, 60, "the row to be taken")
            return sent

        # A busy machine can stop the client for longer than it has for the head.
        late = next(sent for sent in (submit() for _ in range(3)) if not sent.done())
        time.sleep(1.5)
        gate.allow(3)
        assert late.result().status_code == 200


def test_the_option_allowed_host_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpt2train.cli import app
    from gpt2train.command_line import run_command

    flags = ["serve", "--model", str(tmp_path), "--allowed-host", "a.example", "--allowed-host", "http://b.example"]
    assert run_command(app, flags) == 2
    assert "--allowed-host" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_many_faulty_clients_cause_no_leak_and_no_hang(tmp_path: Path) -> None:
    found, wrong = run(tmp_path / "model", "nano", seconds=8, clients=12)
    assert wrong == []
    assert {name.partition(":")[0] for name in found.counts} == set(KINDS)
    assert {"whole: right", "stream: right", "burst: some refused"} <= set(found.counts)
