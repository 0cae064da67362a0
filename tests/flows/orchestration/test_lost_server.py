"""A command whose Prefect server is killed or stops answering in the middle: its work ends with its result."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.prefect_server import PrefectServer, running_server

# A flow of two steps as a command; in the first one the server is lost: its own, or that of a process id.
COMMAND = """
import functools, os, signal, sys
import psutil
from flows.command import command
from flows.orchestration.flow import settings_flow
from flows.recipe import PlannedRun
from flows.settings import OutputSettings
from gpt2train.errors import UserError
from gpt2train.store.manifest import Outcome
from tasks.core.step import Step
from tests.flows.slow_batches import naps

deed, output, fails, other = sys.argv[1:]
sys.argv[1:] = ["--output", output, "--workers", "1"]

def lost(root, runner):
    [server] = [psutil.Process(int(other))] if other else [
        one for one in psutil.Process().children() if "flows.orchestration.server" in one.cmdline()
    ]
    server.send_signal(getattr(signal, deed))
    with runner.gpu_slot(["GPU 0"], 1, "run"):
        runner.report_metrics([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], 2)
    return Step(root, "lost", version=1, parameters={}, inputs={}).commit(Outcome())

class Probe(PlannedRun):
    name, model, result_name = "probe", OutputSettings, "result"

    def check(self):
        pass

    def recipe(self, runner):
        runner.run_step(lost, self.root)
        if fails:
            raise UserError("the mistake; repair it")
        return runner.run_step(naps, self.root, 0.0)

    def conclude(self, made, publisher):
        return (self.root / made.folder).path()

command(settings_flow(Probe))
"""
LIMITS = {"PREFECT_API_REQUEST_TIMEOUT": "2", "PREFECT_CLIENT_MAX_RETRIES": "0"}  # of 60 s and 5
NOISE = ("Error logging to API", "Traceback", "Event(", "connection attempts", "Service ")


def run(deed: str, folder: Path, fails: str = "", server: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), **more}
    command = [sys.executable, "-c", COMMAND, deed, str(folder / "out"), fails, server]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)


@pytest.mark.parametrize(
    "fails", [pytest.param("", marks=pytest.mark.slow), pytest.param("fails", marks=pytest.mark.exhaustive)]
)
def test_a_command_whose_embedded_server_is_killed_ends_with_its_result(fails: str, tmp_path: Path) -> None:
    """Prefect's client repeated every request for a minute, 222 s in all, and finished work ended with exit code 1."""
    done = run("SIGKILL", tmp_path, fails)
    text = done.stdout + done.stderr
    assert "the embedded Prefect server has ended" in text and not [word for word in NOISE if word in text], text
    if fails:
        assert done.returncode == 2 and done.stderr.splitlines()[-1] == "error: the mistake; repair it", text
    else:
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"result: {tmp_path}/out/naps", text
        assert (tmp_path / "out/naps/_manifest.json").exists()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with running_server(tmp_path_factory.mktemp("lost") / "prefect") as running:
        yield running


@pytest.mark.exhaustive
@pytest.mark.parametrize("fails", ["", "fails"])
def test_a_command_whose_server_stops_answering_ends_with_its_result(
    server: PrefectServer, fails: str, tmp_path: Path
) -> None:
    assert server.server is not None
    # `prefect server start` is one process here: it runs uvicorn itself.
    try:
        done = run("SIGSTOP", tmp_path, fails, str(server.server.pid), PREFECT_API_URL=server.address, **LIMITS)
    finally:
        for process in (server.server, *server.server.children(recursive=True)):
            process.resume()
    text = done.stdout + done.stderr
    assert not [word for word in NOISE if word in text], text
    assert done.returncode == (2 if fails else 0), text
    assert (done.stderr.splitlines()[-1] == "error: the mistake; repair it") == bool(fails), text
    assert fails or "did not take" in text, text
