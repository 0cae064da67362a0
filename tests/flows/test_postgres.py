"""The Prefect server on a real PostgreSQL: flow runs, limits, and state that survives a restart."""

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.prefect_server import running_server

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
PASSWORD = "open-sesame"
FLOW = """
import json, time
from prefect import flow, task
from prefect.concurrency.sync import concurrency

@task
def double(n: int) -> int:
    return 2 * n

@flow(name="small")
def small() -> tuple[float, float]:
    with concurrency("gpt2train-gpu", occupy=1, strict=True):
        began = time.time()
        assert sum(double.map(range(20)).result()) == 380
        time.sleep(1)
        return began, time.time()

print(json.dumps(small()))
"""


@pytest.fixture
def postgres() -> Iterator[str]:
    """The address of an empty database, of a cluster that runs as long as the test."""
    if not BINARIES:
        pytest.skip("needs PostgreSQL (Debian's postgresql)")
    root = os.geteuid() == 0
    user = "nobody" if root else pwd.getpwuid(os.getuid()).pw_name  # PostgreSQL does not start as root
    folder = Path(tempfile.mkdtemp(prefix="gpt2train-postgres-", dir="/tmp"))  # pytest's own are closed to others
    (folder / "password").write_text(PASSWORD)
    if root:
        for path in (folder, folder / "password"):
            shutil.chown(path, user)
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(name: str, *arguments: str) -> None:
        subprocess.run(
            [str(BINARIES[-1] / name), *arguments],
            user=user if root else None,
            cwd=folder,
            env={**os.environ, "PGPASSWORD": PASSWORD},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )

    data = str(folder / "data")
    try:
        secret = ("--pwfile", str(folder / "password"), "--auth", "scram-sha-256")
        run("initdb", "--pgdata", data, "--username", "prefect", "--encoding", "UTF8", "--no-sync", *secret)
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "--pgdata", data, "--wait", "--log", str(folder / "log"), "--options", options, "start")
        run("createdb", "--host", "127.0.0.1", "--port", str(port), "--username", "prefect", "prefect")
        yield f"postgresql+asyncpg://prefect:{PASSWORD}@127.0.0.1:{port}/prefect"
    finally:
        run("pg_ctl", "--pgdata", data, "--mode", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.mark.exhaustive
def test_the_server_keeps_its_state_in_postgres(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", postgres)
    script = tmp_path / "small.py"
    script.write_text(FLOW)
    with running_server(tmp_path / "first") as first:
        first.ask("POST", "v2/concurrency_limits/", name="gpt2train-gpu", limit=1)
        first.ask("POST", "work_pools/", name="gpt2train", type="process")
        command = [sys.executable, str(script)]
        flows = [subprocess.Popen(command, env=first.environment, stdout=subprocess.PIPE, text=True) for _ in "ab"]
        spans = []
        for flow in flows:
            said, _ = flow.communicate(timeout=240)
            assert flow.returncode == 0
            spans.append(json.loads(said))
        earlier, later = sorted(spans)
        assert earlier[1] <= later[0]  # the limit of one let them in one after the other
    assert not list((tmp_path / "first").rglob("*.db"))  # no SQLite beside it

    with running_server(tmp_path / "second") as second:
        runs = second.ask("POST", "flow_runs/filter", limit=9)
        assert [run["state_type"] for run in runs] == ["COMPLETED"] * 2
        limit = second.ask("GET", "v2/concurrency_limits/gpt2train-gpu")
        assert (limit["limit"], limit["active_slots"]) == (1, 0)
        assert second.ask("GET", "work_pools/gpt2train")["type"] == "process"
        assert second.ask("POST", "task_runs/count") == 40
    for home in ("first", "second"):
        assert PASSWORD not in (tmp_path / home / "server.log").read_text()
