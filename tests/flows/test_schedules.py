"""Schedules of deployments: a server makes their runs. Releases of its libraries decide whether it can."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.flows.conftest import Server
from tests.flows.prefect_server import ROOT, running_server
from tests.processes import wait_for

# Libraries of Prefect's server that have had a release with which it does not work.
BOUNDED = ("fastapi", "prefect", "sqlalchemy")
HOURLY = {"interval": 3600, "anchor_date": "2026-01-01T00:00:00Z", "timezone": "UTC"}


@pytest.mark.parametrize("name", BOUNDED)
def test_the_installed_release_is_within_its_bounds(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}[name]
    assert any(part.operator in ("<", "<=") for part in bounds), "no upper bound"
    assert importlib.metadata.version(name) in bounds


def test_the_server_schedules_runs(server: Server) -> None:
    """The statement by which the scheduler's loop inserts runs, asked for over the API."""
    flow = server.ask("POST", "flows/", name="scheduled")["id"]
    schedules = [{"schedule": HOURLY, "active": True}]
    deployment = server.ask("POST", "deployments/", name="hourly", flow_id=flow, schedules=schedules)["id"]
    server.ask("POST", f"deployments/{deployment}/schedule", min_runs=3)
    found = server.ask("POST", "flow_runs/filter", deployments={"id": {"any_": [deployment]}})
    assert len(found) >= 3 and {run["state"]["type"] for run in found} == {"SCHEDULED"}
    assert all(run["auto_scheduled"] for run in found)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_schedule_made_by_command_starts_runs(tmp_path: Path) -> None:
    """`prefect deploy`, `prefect deployment schedule create`, and the runs that the server's own loop makes of it."""
    with running_server(tmp_path / "prefect") as home:
        assert home.prefect("work-pool", "create", "gpt2train", "--type", "process").returncode == 0
        done = home.prefect("deploy", "--name", "tiny", "--prefect-file", "deployments/prefect.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        for when in (("--cron", "*/5 * * * *"), ("--interval", "240")):
            done = home.prefect("deployment", "schedule", "create", "pretrain/tiny", *when)
            assert done.returncode == 0, done.stdout + done.stderr

        def scheduled() -> bool:
            found = home.ask("POST", "flow_runs/filter", limit=50)
            return len({run["created_by"]["id"] for run in found if run["state"]["type"] == "SCHEDULED"}) == 2

        wait_for(scheduled, 240, "runs of both schedules")
        log = (home.home / "server.log").read_text()
        assert "Traceback" not in log and "Error" not in log, log[-3000:]
