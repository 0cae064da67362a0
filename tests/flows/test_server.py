"""The Prefect server: out of reach, schedules and their releases, PostgreSQL; and no secret in what it keeps."""

import functools
import http.server
import importlib.metadata
import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.dataprep import dataprep
from flows.orchestration.server import NO_SERVER, configured_server, prefect_server
from flows.settings import DataprepSettings, resolve
from gpt2train.errors import UserError
from tasks.blacklist.blocklists import check_blocklists
from tasks.core.input_files import base_name, find_inputs, read_any
from tests.flows.conftest import Server
from tests.flows.mini_pipeline import Mini
from tests.flows.network_audit import NetworkAudit
from tests.flows.prefect_server import ROOT, running_server
from tests.object_stores import free_port
from tests.processes import wait_for
from tests.test_repository import required


def test_an_unreachable_server_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the environment, without a scheme, and by the profile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        unused = f"http://127.0.0.1:{probe.getsockname()[1]}/api"

    def refuse(said: str) -> None:
        with pytest.raises(UserError, match=said):
            prefect_server().__enter__()

    monkeypatch.setenv("PREFECT_API_URL", unused)
    refuse(rf"no Prefect server answers at {unused} \(.*refused\); start it")
    monkeypatch.setenv("PREFECT_API_URL", "127.0.0.1:4200/api")
    refuse(r"answers at 127\.0\.0\.1:4200/api")
    with socket.create_server(("127.0.0.1", 0)) as other:  # that of another protocol
        threading.Thread(target=lambda: other.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{other.getsockname()[1]}/api")
        refuse(r"no Prefect server answers at .* \(ssh-2\.0-openssh_9\.2")
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    assert configured_server() is None
    profiles.write_text(f'active = "site"\n[profiles.site]\nPREFECT_API_URL = "{unused}"\n')
    assert configured_server() == unused
    refuse(f"no Prefect server answers at {unused}")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert configured_server() == "http://127.0.0.1:1/api"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".env", "A=1\nexport PREFECT_API_URL='{}' # ours\n"),
        (".env", "PREFECT_API_URL=http://first.example/api\nPREFECT_API_URL = {}\r\n"),
        ("prefect.toml", "[api]\nurl = '{}'\n"),
        ("pyproject.toml", "[tool.prefect.api]\nurl = '{}'\n"),
    ],
)
def test_the_server_of_a_settings_file_in_the_folder_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, text: str
) -> None:
    """In Prefect's order: it would be overridden by the address of an embedded server."""
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    for damaged in ("prefect.toml", "pyproject.toml"):
        Path(damaged).write_text("[tool\n")
    assert configured_server() is None
    profiles.write_text('active = "site"\n[profiles.site]\nPREFECT_API_URL = "http://profile.example/api"\n')
    Path(file).write_text(text.format("http://folder.example/api"))
    assert configured_server() == "http://folder.example/api"
    monkeypatch.setenv("PREFECT_API_URL", "http://environment.example/api")
    assert configured_server() == "http://environment.example/api"


# Libraries of Prefect's server that have had a release with which it does not work.
BOUNDED = ("fastapi", "prefect", "sqlalchemy")


@pytest.mark.parametrize("name", BOUNDED)
def test_the_installed_release_is_within_its_bounds(name: str) -> None:
    bounds = {one.name: one.specifier for one in required("pipeline")}[name]
    assert any(part.operator in ("<", "<=") for part in bounds), "no upper bound"
    assert importlib.metadata.version(name) in bounds


def test_the_server_schedules_runs(server: Server) -> None:
    """The statement by which the scheduler's loop inserts runs, asked for over the API."""
    flow = server.ask("POST", "flows/", name="scheduled")["id"]
    hourly = {"interval": 3600, "anchor_date": "2026-01-01T00:00:00Z", "timezone": "UTC"}
    schedules = [{"schedule": hourly, "active": True}]
    deployment = server.ask("POST", "deployments/", name="hourly", flow_id=flow, schedules=schedules)["id"]
    server.ask("POST", f"deployments/{deployment}/schedule", min_runs=3)
    found = server.ask("POST", "flow_runs/filter", deployments={"id": {"any_": [deployment]}})
    assert len(found) >= 3 and {run["state"]["type"] for run in found} == {"SCHEDULED"}
    assert all(run["auto_scheduled"] for run in found)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_documented_schedule_starts_runs_one_at_a_time(tmp_path: Path) -> None:
    """The command of the page, the runs that the server's own loop makes of it, and two that are due at once."""
    page = (ROOT / "docs/operate/server.md").read_text().partition("## Run on a schedule")[2]
    prefect, *command = shlex.split(page.partition("```\n")[2].partition("```")[0].replace("\\\n", ""))
    assert (prefect, command.pop(0)) == ("prefect", "--no-prompt")
    with running_server(tmp_path / "prefect") as home:
        assert home.prefect("work-pool", "create", "gpt2train", "--type", "process").returncode == 0
        done = home.prefect(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        done = home.prefect("deployment", "schedule", "create", "dataprep/openwebtext", "--interval", "240")
        assert done.returncode == 0, done.stdout + done.stderr

        def scheduled() -> list[dict[str, Any]]:
            found = home.ask("POST", "flow_runs/filter", limit=50)
            return found if len({run["created_by"]["id"] for run in found}) == 2 else []

        wait_for(scheduled, 240, "runs of both schedules")
        first, second = scheduled()[:2]
        assert first["parameters"] == {"config": "dataprep/openwebtext", "refresh": True}
        pending = {"type": "PENDING", "name": "Pending"}
        answers = [home.ask("POST", f"flow_runs/{run['id']}/set_state", state=pending) for run in (first, second)]
        assert [answer["status"] for answer in answers] == ["ACCEPT", "REJECT"]
        assert answers[1]["state"]["name"] == "AwaitingConcurrencySlot"
        log = (home.home / "server.log").read_text()
        assert "Traceback" not in log and "Error" not in log, log[-3000:]


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
    port = free_port()

    def run(name: str, *arguments: str) -> None:
        command, owner = [str(BINARIES[-1] / name), *arguments], user if root else None
        silent: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        secret = os.environ | {"PGPASSWORD": PASSWORD}
        subprocess.run(command, user=owner, cwd=folder, env=secret, check=True, timeout=120, **silent)

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
        earlier, later = sorted(json.loads(flow.communicate(timeout=240)[0]) for flow in flows)
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


TASK_FLOW = """
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


@pytest.mark.exhaustive
def test_server_worker_and_run_connect_to_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = NetworkAudit(tmp_path)
    # By the proxy that is none, a server of Prefect finds its list of worker types beside it instead of outside.
    for name, value in {**watch.environment(), "HTTPS_PROXY": NO_SERVER, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "small.py").write_text(TASK_FLOW.format(folder=str(tmp_path)))
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


SECRETS = ("SECRETPW", "SECRETSIG", "SECRETTOKEN", "SEC%2FRETENC", "RETSLASH")
SPELLINGS = [
    "http://user:SECRETPW@127.0.0.1:9/list.txt",
    "https://SECRETTOKEN@127.0.0.1:9/list.txt",
    "http://127.0.0.1:9/list.txt?X-Amz-Credential=a&X-Amz-Signature=SECRETSIG",
    "http://user:SEC%2FRETENC@127.0.0.1:9/list.txt?sig=SECRETSIG#token=SECRETTOKEN",
    "ftp://user:SECRETPW@127.0.0.1:9/list.txt",
    "s3://key:SECRETPW@bucket/list.txt",
    "s3://key:SEC/RETSLASH@bucket/list.txt",
    "S3A://SECRETTOKEN@bucket/list.txt",
    "gs://key:SECRETPW@bucket/list.txt",
    "simplecache::s3://key:SECRETPW@bucket/list.txt",
    "http:/user:SECRETPW@127.0.0.1:9/list.txt",
]


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("address", SPELLINGS)
def test_no_error_and_no_parameter_contains_a_secret(address: str) -> None:
    """Messages of libraries included, which name what they took for a bucket."""
    for read in (lambda: find_inputs([address], "--urls", (".txt",)), lambda: read_any(address)):
        with pytest.raises(UserError) as caught:
            read()
        assert not leaks(str(caught.value)) and ("…" in str(caught.value))
    assert not leaks(base_name(address))

    with pytest.raises(UserError, match="holds credentials") as caught:
        check_blocklists(["s3://key:SECRETPW@bucket/list"])
    assert not leaks(str(caught.value))
    # Nor do parameters that are sent to Prefect.
    given = resolve(DataprepSettings, flags={"urls": [address], "lambada": address, "documents": [f"{address}.gz"]})
    sent = dataprep.serialize_parameters({"config": None, **given.model_dump(mode="json")})
    assert not leaks(repr(sent)) and "…" in sent["lambada"] and sent["json_key"] == "text"


@pytest.fixture
def lists(tmp_path: Path) -> Iterator[str]:
    """Address of a server of a list of URLs, none of which may be asked for, and of passages, whatever the query."""
    (folder := tmp_path / "served").mkdir()
    (folder / "urls.txt").write_text("http://www.youtube.example/x\nnot a url\n")
    (folder / "lambada.jsonl").write_text('{"text": "a b"}\n')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.slow
def test_a_command_leaves_no_secret_behind(mini: Mini, server: Server, lists: str, tmp_path: Path) -> None:
    """Checked are parameters, logs and state in the server's database, the output, and both streams."""
    command = [sys.executable, "-m", "flows.dataprep", "--output", str(tmp_path / "out")]
    command += ["--urls", f"http://user:SECRETPW@{lists}/urls.txt?X-Amz-Signature=SECRETSIG"]
    command += ["--lambada", f"http://SECRETTOKEN@{lists}/lambada.jsonl?sig=SECRETSIG"]
    environment = mini.environ(**server.environment)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "blacklisted_domain 1" in error and "malformed 1" in error
    by_name = {"name": {"any_": ["dataprep"]}}
    [run] = server.ask("POST", "flow_runs/filter", flows=by_name, sort="START_TIME_DESC", limit=1)
    assert run["parameters"]["urls"] == [f"http://…@{lists}/urls.txt?…"] and run["state"]["type"] == "FAILED"
    assert not leaks(done.stdout + done.stderr)
    held = [path for folder in (server.home, tmp_path / "out") for path in folder.rglob("*") if path.is_file()]
    assert held and not [path for path in held if leaks(path.read_bytes().decode("latin-1"))]
