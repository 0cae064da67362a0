"""Session fixtures of the flow tests: the demo site and one finished small run of the pipeline."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.demo import DemoSite, demo_site
from flows.orchestration.server import prefect_server
from tests.flows.mini_pipeline import Mini
from tests.flows.network_audit import NetworkAudit
from tests.flows.prefect_server import ask
from tests.listening_sockets import Sampler, sampled

# The server of the fixture `server`, and what ends it.
SERVERS: list["Server"] = []
RUNNING = contextlib.ExitStack()


@dataclass
class Finished:
    """A finished run of the pipeline."""

    mini: Mini
    output: Path
    run: Path  # of its training; tests add others beside it
    stdout: str
    stderr: str
    sockets: Sampler


@dataclass
class Server:
    environment: dict[str, str]  # by which a command finds it
    home: Path

    def ask(self, method: str, path: str, **json: Any) -> Any:
        """Ask its API: `ask("POST", "flow_runs/filter", limit=5)`. The answer, or its error."""
        user, _, password = self.environment["PREFECT_API_AUTH_STRING"].partition(":")
        return ask(self.environment["PREFECT_API_URL"], method, path, (user, password), **json)


@pytest.fixture(scope="session")
def site() -> Iterator[DemoSite]:
    with demo_site() as running:
        yield running


@pytest.fixture(scope="session")
def mini(site: DemoSite, tmp_path_factory: pytest.TempPathFactory) -> Mini:
    folder = tmp_path_factory.mktemp("flows")
    return Mini(folder, site.connect_to, NetworkAudit(folder).environment())


@pytest.fixture(scope="session")
def finished(mini: Mini) -> Finished:
    output = mini.folder / "out"
    with sampled(os.getpid(), seconds=0.5) as sockets:
        done = mini.run("pipeline", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (output / "runs").iterdir()
    return Finished(mini, output, run, done.stdout, done.stderr, sockets)


@pytest.fixture
def output(finished: Finished, tmp_path: Path) -> Path:
    target = tmp_path / "out"
    shutil.copytree(finished.output, target, ignore=shutil.ignore_patterns("checkpoints", "logs", "tensorboard"))
    for name in ("config.toml", "run.json"):
        file = target / "runs" / finished.run.name / name
        file.write_text(file.read_text().replace(str(finished.output), str(target)))
    return target


@pytest.fixture
def server(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A running Prefect server for commands, the same for many tests: starting one takes 5 s of CPU time."""
    if not SERVERS:
        home = tmp_path_factory.mktemp("server") / "prefect"
        shutil.copytree(finished.mini.home, home)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_API_URL", "")  # and away again, so that other commands start their own
            patch.setenv("PREFECT_HOME", str(home))
            address = RUNNING.enter_context(prefect_server())
            key = os.environ["PREFECT_API_AUTH_STRING"]
        SERVERS.append(Server({"PREFECT_API_URL": f"{address}/api", "PREFECT_API_AUTH_STRING": key}, home))
    return SERVERS[0]


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the server after the main job: idle until the end of all tests it took 20 s of CPU time."""
    if "finished" in item.fixturenames and "finished" not in getattr(nextitem, "fixturenames", ()):
        RUNNING.close()
        SERVERS.clear()
