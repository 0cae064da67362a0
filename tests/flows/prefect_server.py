"""A long-lived Prefect server and its workers, as real processes that end with the test."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.object_stores import free_port
from tests.processes import has_ended, wait_for, wait_until_ended

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0
BUSY_TRIES = 20


def ask(address: str, method: str, path: str, auth: tuple[str, str] | None = None, **json: Any) -> Any:
    """The answer of the API at `address`, or its error."""
    for _ in range(BUSY_TRIES):
        answer = httpx.request(method, f"{address}/{path}", json=json or None, auth=auth, timeout=60, trust_env=False)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:  # SQLite is locked; Prefect's client asks again
            break
        time.sleep(1)
    answer.raise_for_status()
    return answer.json() if answer.content else None


@dataclass
class PrefectServer:
    address: str  # of its API
    environment: dict[str, str]  # by which commands and workers find it
    home: Path  # folder of its database and log
    server: psutil.Process | None = None

    def __post_init__(self) -> None:
        self._own = dict(self.environment)  # without what marks the workers of one test

    def serve(self) -> None:
        """Start the server, and wait until it answers (9-13 s: a new database is migrated)."""
        url = httpx.URL(self.address)
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", url.host, "--port", str(url.port)]
        with (self.home / "server.log").open("a") as file:
            server = self.server = _start(command, self._own, file)

        def answers() -> bool:
            assert not has_ended(server), (self.home / "server.log").read_text()[-2000:]
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{self.address}/health", timeout=5, trust_env=False).status_code == 200
            return False

        wait_for(answers, START_SECONDS, f"the server at {self.address}")

    def prefect(self, *arguments: str, seconds: float = 300) -> "subprocess.CompletedProcess[str]":
        """Run `prefect …` in the repository, as an operator does."""
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False
        )

    def ask(self, method: str, path: str, **json: Any) -> Any:
        """Ask the API: `ask("POST", "flow_runs/filter", limit=5)`. The answer, or its error."""
        return ask(self.address, method, path, **json)

    @contextlib.contextmanager
    def worker(self, pool: str, log: Path, folder: Path = ROOT, under: Sequence[str] = ()) -> Iterator[psutil.Process]:
        """A worker of a pool, in `folder`, by a command `under` which it runs; `log` gets its output.

        It is ended (Ctrl-C, then kill) with all its processes.
        """
        command = [*under, sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"]
        with log.open("w") as file:
            process = _start(command, self.environment, file, folder)
        try:
            yield process
        finally:
            _end(process)


@contextlib.contextmanager
def running_server(home: Path) -> Iterator[PrefectServer]:
    """A server on a free port of 127.0.0.1, its database in `home`."""
    address = f"http://127.0.0.1:{free_port()}/api"
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": address,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    home.mkdir(parents=True, exist_ok=True)
    made = PrefectServer(address, environment, home)
    try:
        made.serve()
        yield made
    finally:
        if made.server is not None:
            _end(made.server)


def _start(command: list[str], environment: dict[str, str], output: Any, folder: Path = ROOT) -> psutil.Process:
    started = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    return psutil.Process(started.pid)


def _end(process: psutil.Process) -> None:
    family = [process, *_children(process)]
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(10)
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    wait_until_ended(family)


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []
