"""The demo site, once for all tests of the flows, and one finished small run of the main job."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.demo import DemoSite, demo_site
from flows.server import prefect_server
from tests.flows.mini import Mini
from tests.flows.watch import Watch


@dataclass
class Finished:
    """A finished run of the main job."""

    mini: Mini
    output: Path
    run: Path  # of its training; tests add others beside it
    stdout: str
    stderr: str


@dataclass
class Server:
    """A Prefect server that lives longer than a command."""

    environment: dict[str, str]  # by which a command finds it
    home: Path


@pytest.fixture(scope="session")
def site() -> Iterator[DemoSite]:
    with demo_site() as running:
        yield running


@pytest.fixture(scope="session")
def mini(site: DemoSite, tmp_path_factory: pytest.TempPathFactory) -> Mini:
    folder = tmp_path_factory.mktemp("flows")
    return Mini(folder, site.connect_to, Watch(folder).environment())


@pytest.fixture(scope="session")
def finished(mini: Mini) -> Finished:
    """The main job, run once from nothing."""
    output = mini.folder / "out"
    done = mini.run("pipeline", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (output / "runs").iterdir()
    return Finished(mini, output, run, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def server(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For commands of which something else is asked than to start one, which takes 5 s of a core."""
    home = tmp_path_factory.mktemp("server") / "prefect"
    shutil.copytree(finished.mini.home, home)
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_API_URL", "")  # and away again, so that other commands start their own
            patch.setenv("PREFECT_HOME", str(home))
            address = stack.enter_context(prefect_server())
        yield Server({"PREFECT_API_URL": f"{address}/api"}, home)
