"""Network traffic of a Prefect server, a worker and a deployed run: no connection to another host."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.orchestration.server import NO_SERVER
from tests.flows.network_audit import NetworkAudit
from tests.flows.prefect_server import running_server

FLOW = """
import flows
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact

@task
def add(number):
    return number + 1

@flow
def small():
    create_markdown_artifact("a picture", key="small")
    return add(1)

if __name__ == "__main__":
    small.from_source(source={folder!r}, entrypoint="small.py:small").deploy("outside", work_pool_name="outside")
"""


def test_the_audit_hook_records_names_and_addresses_of_other_hosts(tmp_path: Path) -> None:
    watch = NetworkAudit(tmp_path)
    code = """
import contextlib, socket
for ask in (lambda: socket.getaddrinfo("elsewhere.invalid", 80), lambda: socket.gethostbyname("other.invalid"),
            lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("192.0.2.1", 9)),
            lambda: socket.create_connection(("127.0.0.1", 9))):
    with contextlib.suppress(OSError):
        ask()
"""
    environment = watch.environment() | {"PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    noted = {what: host for _, what, host in watch.outside()}
    assert noted == {"getaddrinfo": "elsewhere.invalid", "gethostbyname": "other.invalid", "sendto": "192.0.2.1"}
    assert ("connect", "127.0.0.1") in [(what, host) for _, what, host in watch.notes()]


@pytest.mark.exhaustive
def test_server_worker_and_run_connect_to_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = NetworkAudit(tmp_path)
    # By the proxy that is none, a server of Prefect finds its list of worker types beside it instead of outside.
    for name, value in {**watch.environment(), "HTTPS_PROXY": NO_SERVER, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "small.py").write_text(FLOW.format(folder=str(tmp_path)))
    with running_server(tmp_path / "home") as home:
        assert home.prefect("work-pool", "create", "outside", "--type", "process").returncode == 0
        command = [sys.executable, str(tmp_path / "small.py")]
        deployed = subprocess.run(command, env=home.environment, capture_output=True, text=True, timeout=200)
        assert deployed.returncode == 0, deployed.stderr
        with home.worker("outside", tmp_path / "worker.log"):
            ran = home.prefect("deployment", "run", "small/outside", "--watch")
            assert ran.returncode == 0, ran.stderr + (tmp_path / "worker.log").read_text()
        [run] = home.ask("POST", "flow_runs/filter", limit=5)
        assert run["state_name"] == "Completed", (tmp_path / "worker.log").read_text()
    # Server, pool, deployment, worker, the command that asks for the run, and the run itself: a process each.
    assert len({number for number, _, _ in watch.notes()}) >= 5
    assert watch.outside() == []
