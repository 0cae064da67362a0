"""Schedules of deployments: a server makes their runs. Releases of its libraries decide whether it can."""

import importlib.metadata
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import Server
from tests.flows.prefect_server import ROOT, running_server
from tests.processes import wait_for
from tests.test_repository import required

# Libraries of Prefect's server that have had a release with which it does not work.
BOUNDED = ("fastapi", "prefect", "sqlalchemy")
HOURLY = {"interval": 3600, "anchor_date": "2026-01-01T00:00:00Z", "timezone": "UTC"}


@pytest.mark.parametrize("name", BOUNDED)
def test_the_installed_release_is_within_its_bounds(name: str) -> None:
    bounds = {one.name: one.specifier for one in required("pipeline")}[name]
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
