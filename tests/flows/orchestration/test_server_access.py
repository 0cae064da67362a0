"""Access to the embedded Prefect server, and the wait for its start, the first one too."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from flows.orchestration import server as embedded
from flows.orchestration.server import KEY_FILE, api_key
from gpt2train.errors import RunError
from tests.flows.conftest import Server

FOREIGN = "https://other.example"


def ask(server: Server, method: str, path: str, key: bool, **headers: str) -> httpx.Response:
    """Send a request with or without the key; `path` begins at the root."""
    user, _, password = server.environment["PREFECT_API_AUTH_STRING"].partition(":")
    address = server.environment["PREFECT_API_URL"].removesuffix("/api")
    auth = (user, password) if key else None
    return httpx.request(method, address + path, headers=headers, auth=auth, timeout=60, trust_env=False)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/flow_runs/filter"),
        ("POST", "/api/deployments/"),
        ("GET", "/api/admin/settings"),
        ("GET", "/api/admin/version"),
        ("DELETE", "/api/flow_runs/00000000-0000-0000-0000-000000000000"),
    ],
)
def test_the_api_requires_the_key(server: Server, method: str, path: str) -> None:
    assert ask(server, method, path, key=False).status_code == 401
    wrong = httpx.request(method, server.environment["PREFECT_API_URL"] + path[4:], auth=("gpt2train", "x"), timeout=60)
    assert wrong.status_code == 401
    assert ask(server, method, path, key=True).status_code not in (401, 403)


@pytest.mark.parametrize("path", ["/api/events/in", "/api/events/out", "/api/logs/out"])
def test_streams_require_the_key(server: Server, path: str) -> None:
    address = f"ws://{urllib.parse.urlsplit(server.environment['PREFECT_API_URL']).netloc}{path}"
    for said, kinds in (("{}", None), ('{"type": "auth", "token": "gpt2train:x"}', [Subprotocol("prefect")])):
        refused = pytest.raises((WebSocketException, EOFError))
        with refused, connect(address, proxy=None, subprotocols=kinds) as stream:
            stream.send(said)
            stream.recv(timeout=60)


@pytest.mark.parametrize("host", ["other.example", "rebound.example:80", "127.0.0.1.other.example", "10.0.0.1", ""])
@pytest.mark.parametrize("path", ["/api/health", "/api/admin/settings", "/"])
def test_a_foreign_host_header_is_refused(server: Server, host: str, path: str) -> None:
    assert ask(server, "GET", path, key=True, Host=host).status_code == 400


@pytest.mark.parametrize("origin", [FOREIGN, "null", "http://127.0.0.1:1", "http://127.0.0.1"])
def test_no_other_origin_is_allowed(server: Server, origin: str) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    before = ask(server, "OPTIONS", "/api/deployments/", key=False, **asked)
    assert before.status_code == 400 and "access-control-allow-origin" not in before.headers
    for key in (True, False):
        answer = ask(server, "GET", "/api/health", key=key, Origin=origin)
        assert "access-control-allow-origin" not in answer.headers


def test_requests_of_its_own_pages_are_allowed(server: Server) -> None:
    port = urllib.parse.urlsplit(server.environment["PREFECT_API_URL"]).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        asked = {"Origin": f"http://{host}", "Access-Control-Request-Method": "POST", "Host": host}
        answer = ask(server, "OPTIONS", "/api/flow_runs/filter", key=False, **asked)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == f"http://{host}"
    assert ask(server, "GET", "/ui-settings", key=False).json()["auth"] == "BASIC"  # the UI asks for the password


def test_it_listens_on_loopback_and_its_key_is_not_readable(server: Server) -> None:
    port = urllib.parse.urlsplit(server.environment["PREFECT_API_URL"]).port
    listening = {one.laddr for one in psutil.net_connections("inet") if one.status == psutil.CONN_LISTEN}
    assert [one.ip for one in listening if one.port == port] == ["127.0.0.1"]
    key = server.environment["PREFECT_API_AUTH_STRING"]
    secret = key.partition(":")[2]
    assert len(secret) >= 32
    assert not [one for one in psutil.process_iter(["cmdline"]) if secret in " ".join(one.info["cmdline"] or ())]
    holding = [path for path in server.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert holding == [server.home / KEY_FILE] and (server.home / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_the_key_of_a_prefect_home_is_kept_and_readable_by_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    key, path = api_key(), tmp_path / "home" / KEY_FILE
    assert api_key() == key and path.read_text().strip() == key and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # others may have read it
    other = api_key()
    assert other != key and path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    (tmp_path / "planted").write_text("gpt2train:known\n")
    path.symlink_to(tmp_path / "planted")
    assert api_key() not in ("gpt2train:known", key, other) and not path.is_symlink()
    assert (tmp_path / "planted").read_text() == "gpt2train:known\n"
    assert [one.name for one in (tmp_path / "home").iterdir()] == [KEY_FILE]


SERVE = """
import http.server, socket, sys, time
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    log_message = lambda *_: None
end = time.process_time() + 1.5
while time.process_time() < end: pass
server = http.server.HTTPServer(("127.0.0.1", 0), Healthy, bind_and_activate=False)
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.serve_forever()
"""


def wait_for_child(code: str, say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a child as for the server, with limits that are over long before a busy machine has started it."""
    monkeypatch.setattr(embedded, "STATUS_SECONDS", 0.05)
    monkeypatch.setattr(embedded, "HEALTH_SECONDS", 0.2)
    with tempfile.TemporaryFile("w+") as output, socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(number)], pass_fds=[number], stdout=output, stderr=output
        )
        try:
            embedded._wait_until_healthy(child, listener.getsockname()[1], output, say)
        finally:
            child.kill()
            child.wait()


def test_the_port_is_never_free_for_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The key goes to this port: it is bound before the server listens, and stays so when the server has died."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setattr(embedded, "WATCH_SECONDS", 0.05)
    cut_off = threading.Event()
    monkeypatch.setattr("flows.compat.prefect.disconnect", cut_off.set)

    def check_bound(port: int) -> None:
        with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", port)):
            pass

    def kill(process: "subprocess.Popen[bytes]", port: int, *_: object) -> None:
        check_bound(port)
        process.kill()
        process.wait()

    monkeypatch.setattr(embedded, "_wait_until_healthy", kill)
    with embedded.prefect_server() as address:
        assert address is not None and cut_off.wait(60)
        check_bound(int(address.rpartition(":")[2]))
        with pytest.raises(httpx.HTTPError):  # at once, not after the timeout
            httpx.get(f"{address}/api/health", timeout=60, trust_env=False)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/api/health", timeout=60, trust_env=False)


@pytest.mark.slow
def test_neither_a_proxy_nor_another_base_path_is_asked_for_the_embedded_server(tmp_path: Path) -> None:
    program = """
import os
from flows.orchestration.server import prefect_server
with prefect_server():
    from prefect.client.orchestration import get_client
    with get_client(sync_client=True) as client:
        print(client.api_healthcheck())
print(os.environ["NO_PROXY"], "no_proxy" in os.environ)
"""
    proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}  # of which nothing listens
    # A server of another test in this process has set its own address, and that no proxy leads there.
    left_out = ("PREFECT_API", "NO_PROXY")
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith(left_out)}
    environment = {**others, **proxies, "NO_PROXY": "a.example", "PREFECT_HOME": str(tmp_path)}
    environment["PREFECT_SERVER_API_BASE_PATH"] = "/prefect/api"  # with which the start never ended
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == ["None", "a.example False"], done.stderr


def test_a_slow_start_is_waited_for_and_one_that_hangs_or_exits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    wait_for_child(SERVE, said.append, monkeypatch)
    assert said and all("waiting for the embedded Prefect server to start" in line for line in said)
    with pytest.raises(RunError, match=r"did not start \(no such thing\)"):
        wait_for_child("import sys; sys.exit('no such thing')", print, monkeypatch)
    monkeypatch.setattr(embedded, "STALLED_SECONDS", 1.0)
    with pytest.raises(RunError, match="did not start"):
        wait_for_child("import os, time; print('asleep', flush=True); time.sleep(600)", lambda _: None, monkeypatch)


def test_a_database_that_the_server_cannot_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "prefect.db").write_text("damaged " * 1000)
    said = r"did not start \(sqlalchemy\.exc\.DatabaseError: .* file is not a database .* set PREFECT_HOME to another"
    with pytest.raises(RunError, match=said):
        embedded.prefect_server(print).__enter__()


@pytest.mark.exhaustive
def test_several_first_starts_at_once(tmp_path: Path) -> None:
    """Each creates the tables of the database, unless another one does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    code = "from flows.orchestration.server import prefect_server\nwith prefect_server():\n    print('started')"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    commands = [subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes) for _ in range(3)]
    ends = [command.communicate(timeout=280) for command in commands]
    assert [out for out, _ in ends] == ["started\n"] * 3, [err[-500:] for _, err in ends]
