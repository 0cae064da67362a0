"""A real Prefect server: retries, lost runs, commands that lose their server, trainings that wait for GPUs."""

import contextlib
import datetime
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow, tags
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.orchestration.task_runner import PrefectRunner
from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.runner import Retries, Runner
from tasks.core.step import Step
from tests.flows.deployed_run import SECONDS
from tests.flows.prefect_server import ROOT, PrefectServer, running_server
from tests.flows.slow_batches import die_once, naps, slow_batches
from tests.processes import wait_for


@pytest.mark.slow
def test_only_transient_errors_of_a_step_are_retried(prefect_server: PrefectServer, tmp_path: Path) -> None:
    tried: list[str] = []

    def passes(runner: Runner) -> Manifest:
        tried.append("passes")
        if len(tried) < 3:
            raise [TransientError("rank 1 was ended by SIGKILL"), ConnectionError("no answer")][len(tried) - 1]
        return Step(Folder(str(tmp_path)), "passes", version=1, parameters={}, inputs={}).commit(Outcome())

    def mistaken(runner: Runner) -> Manifest:
        tried.append("mistaken")
        raise UserError("no such file: tokens.bin; check the path")

    def hungry(runner: Runner) -> Manifest:
        tried.append("hungry")
        raise RunError("rank 0: OutOfMemoryError")

    @flow(name="steps")
    def steps() -> list[Any]:
        ends: list[Any] = [PrefectRunner(1).run_step(passes, retries=Retries(2, 0.01))]
        for step in (mistaken, hungry):
            with pytest.raises((RunError, UserError)) as caught:
                PrefectRunner(1).run_step(step, retries=Retries(2, 0.01))
            ends.append(str(caught.value))
        return ends

    with temporary_settings({PREFECT_API_URL: prefect_server.address}):
        ends = steps(return_state=True).result()[1:]
    assert ends == ["no such file: tokens.bin; check the path", "rank 0: OutOfMemoryError"]
    assert tried == ["passes"] * 3 + ["mistaken", "hungry"]


@pytest.mark.slow
def test_a_killed_batch_is_retried_and_changes_no_state_of_others(
    prefect_server: PrefectServer, tmp_path: Path
) -> None:
    """Prefect rolls back what is in a transaction with a task run that fails: finished batches became `RolledBack`."""

    @flow(name="deadly")
    def deadly() -> int:
        with PrefectRunner(2) as runner:
            return len(runner.run_step(naps, Folder(str(tmp_path)), 0.0, batch=die_once, count=3).outputs)

    with temporary_settings({PREFECT_API_URL: prefect_server.address}):
        state = deadly(return_state=True)
        assert state.result() == 3
    assert (tmp_path / "died").exists()
    names = ["naps", "naps nap-00000", "naps nap-00001", "naps nap-00002"]
    asked = {"flow_runs": {"id": {"any_": [str(state.state_details.flow_run_id)]}}}

    def shown() -> dict[str, str]:  # the server gets them as events, in their order
        return {run["name"]: run["state_name"] for run in prefect_server.ask("POST", "task_runs/filter", **asked)}

    wait_for(lambda: shown().get("naps") == "Completed", SECONDS, "the state of the step")
    assert shown() == dict.fromkeys(names, "Completed")


@pytest.mark.slow
def test_a_limit_by_a_tag_counts_steps_and_not_their_batches_too(prefect_server: PrefectServer, tmp_path: Path) -> None:
    prefect_server.ask("POST", "v2/concurrency_limits/", name="tag:slot", limit=1)
    run = slow_batches.with_options(timeout_seconds=SECONDS)
    with temporary_settings({PREFECT_API_URL: prefect_server.address}), tags("slot"):
        assert run({"output": str(tmp_path / "out"), "workers": 2}, 0.0) == "naps"


@pytest.mark.exhaustive
def test_the_automation_reports_only_runs_without_a_heartbeat(prefect_server: PrefectServer, tmp_path: Path) -> None:
    text = (ROOT / "deployments/lost-runs.yaml").read_text()
    assert "within: 540" in text
    (tmp_path / "lost-runs.yaml").write_text(text.replace("within: 540", "within: 10"))
    made = prefect_server.prefect("automation", "create", "--from-file", str(tmp_path / "lost-runs.yaml"))
    assert made.returncode == 0 and "Created 2 automation" in made.stdout, made.stdout + made.stderr
    flow_id = prefect_server.ask("POST", "flows/", name="silent")["id"]
    silent, alive, done, cancelled = (
        prefect_server.ask("POST", "flow_runs/", flow_id=flow_id, state={"type": "RUNNING"})["id"] for _ in range(4)
    )

    def send_heartbeats(*runs: str) -> None:
        """Send heartbeats, as Prefect's engine does."""
        now = datetime.datetime.now(datetime.UTC).isoformat()
        events = [
            {
                "id": str(uuid.uuid4()),
                "occurred": now,
                "event": "prefect.flow-run.heartbeat",
                "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
            }
            for run in runs
        ]
        httpx.post(f"{prefect_server.address}/events", json=events, trust_env=False).raise_for_status()

    def kind(run: str) -> str:
        return str(prefect_server.ask("GET", f"flow_runs/{run}")["state"]["type"])

    send_heartbeats(silent, alive, done, cancelled)
    cancelling = {"type": "CANCELLING", "name": "Cancelling"}
    prefect_server.ask("POST", f"flow_runs/{cancelled}/set_state", state=cancelling, force=True)
    prefect_server.ask(
        "POST", f"flow_runs/{done}/set_state", state={"type": "COMPLETED", "name": "Completed"}, force=True
    )

    def crashed() -> bool:
        send_heartbeats(alive)
        return kind(silent) == "CRASHED"

    wait_for(crashed, SECONDS, "the automation")
    wait_for(lambda: kind(cancelled) == "CANCELLED", SECONDS, "the automation of cancelled runs")
    assert kind(alive) == "RUNNING" and kind(done) == "COMPLETED"


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("fails", ["", "fails"])
def test_a_command_whose_server_stops_answering_ends_with_its_result(fails: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "prefect") as server:
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
    assert "its return is waited for 60 s" in text


TRAINS = """
import sys
import flows
from prefect import flow, tags
from flows.orchestration.task_runner import PrefectRunner

@flow(name="trains", flow_run_name=sys.argv[1])
def trains():
    with PrefectRunner() as runner, runner.gpu_slot(["cores"], 1, "out/runs/" + sys.argv[1]):
        print("holds a slot", flush=True)
        sys.stdin.read()

trains()
"""


@pytest.mark.exhaustive
def test_a_waiting_run_names_the_holder(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path / "prefect"))
        environment = {**server.environment, "GPT2TRAIN_GPU_QUEUE": str(tmp_path / "locks")}

        def start(name: str) -> "subprocess.Popen[str]":
            file = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            command: list[str] = [sys.executable, "-c", TRAINS, name]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": file, "stderr": subprocess.STDOUT}
            training = stack.enter_context(subprocess.Popen(command, env=environment, text=True, **pipes))
            stack.callback(training.kill)
            return training

        def has_slot(name: str) -> bool:
            log = (tmp_path / f"{name}.log").read_text()
            assert "Traceback" not in log, log
            return "holds a slot" in log

        def shows(words: str) -> bool:
            found = server.ask("POST", "artifacts/filter")
            return any(words in one["data"] for one in found if one["key"] == "gpu-queue")

        first = start("first")
        wait_for(lambda: has_slot("first"), 120, "the first training")
        start("second")
        taken = f"cores is taken by first at work in out/runs/first (process {first.pid})"
        wait_for(lambda: shows(taken), 120, "what the second waits for")
        assert not has_slot("second")
        first.communicate("")
        wait_for(lambda: has_slot("second"), 120, "the second training")
        wait_for(lambda: shows("Training began after the run waited"), 60, "its page")
