"""Retries of steps, and the automation for lost runs, on a real server without a worker."""

import datetime
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.orchestration.task_runner import PrefectRunner
from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.runner import Retries, Runner
from tasks.core.step import Step
from tests.flows.deployed_run import SECONDS
from tests.flows.prefect_server import ROOT, PrefectServer
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
        state = steps(return_state=True)
        assert [str(end) for end in state.result()[1:]] == [
            "no such file: tokens.bin; check the path",
            "rank 0: OutOfMemoryError",
        ]
    assert tried == ["passes"] * 3 + ["mistaken", "hungry"]


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
