"""A deployed training run for the recovery tests: started by a worker, stopped in several ways, run again."""

import datetime
import json
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpt2train.monitoring.metrics import read_metrics
from tests.flows.mini_pipeline import MARK
from tests.flows.prefect_server import ROOT, PrefectServer
from tests.gpt2train import jobs
from tests.processes import command_of, environment_of, has_ended, parent_of, wait_for

SECONDS = 240.0  # for what a busy machine takes a minute
# Runs for hours unless it is stopped, at a few milliseconds per step; a checkpoint is saved only at a stop.
ENDLESS: dict[str, Any] = {
    "model": {"layers": 1, "heads": 2, "hidden": 16, "context": 32, "dropout": 0.1},
    "batch": {"micro_batch": 2, "global_batch": 4},
    "schedule": {"warmup": 10},
    "validation": {"interval": 1_000_000, "samples": 1},
    "checkpoints": {"interval": 1_000_000},
    "logging": {"interval": 50, "tensorboard": False},
    "precision": "fp32",
    "device": "cpu",
    "steps": 1_000_000,
}


@dataclass
class Deployed:
    """A deployment of a flow on a server."""

    server: PrefectServer
    pool: str
    deployment: str
    output: Path  # folder of the runs
    log: Path  # of the worker

    def start(self) -> str:
        made: dict[str, Any] = self.server.ask(
            "POST", f"deployments/{self.deployment}/create_flow_run", state={"type": "SCHEDULED"}
        )
        return str(made["id"])

    def start_and_wait_for_steps(self) -> str:
        before = (self.steps() or [0])[-1]
        run = self.start()
        self.wait_for_step(before + 20)
        return run

    def state(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.ask("GET", f"flow_runs/{run}")["state"]
        return found

    def wait(self, run: str, kind: str) -> dict[str, Any]:
        """Wait for a state of a run; any other final state is a failure."""

        def reached() -> bool:
            state = self.state(run)
            ended = state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
            assert not ended or state["type"] == kind, (state, self.log.read_text()[-3000:])
            return bool(state["type"] == kind)

        wait_for(reached, SECONDS, f"{kind} of {run}")
        return self.state(run)

    def set_state(self, run: str, kind: str, name: str) -> None:
        self.server.ask("POST", f"flow_runs/{run}/set_state", state={"type": kind, "name": name}, force=False)

    def suspend(self, run: str) -> None:
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        details = {"pause_timeout": until.isoformat(), "pause_reschedule": True}
        state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
        answer = self.server.ask("POST", f"flow_runs/{run}/set_state", state=state, force=True)
        assert answer["status"] == "ACCEPT", answer

    def resume(self, run: str) -> None:
        answer = self.server.ask("POST", f"flow_runs/{run}/resume")
        assert answer["status"] == "ACCEPT", answer

    def task_runs(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.ask("POST", "task_runs/filter", flow_runs={"id": {"any_": [run]}})
        return found

    def processes(self) -> list[psutil.Process]:
        """The workers of this server and all processes that they started."""
        mark = self.server.environment[MARK]
        return [one for one in psutil.process_iter() if environment_of(one).get(MARK) == mark and not has_ended(one)]

    def ranks(self) -> list[psutil.Process]:
        """The ranks of the training, without the processes that they start for a moment, git for example."""
        found = {one.pid: one for one in self.processes() if "RANK" in environment_of(one)}
        return [one for one in found.values() if parent_of(one) not in found]

    @property
    def folder(self) -> Path:
        (folder,) = (self.output / "runs").iterdir()
        return folder

    def steps(self) -> list[int]:
        found = list(self.output.glob("runs/*/metrics.jsonl"))
        return [row["step"] for row in read_metrics(found[0].parent)] if found else []

    def saved(self) -> int:
        found = list(self.output.glob("runs/*/checkpoints/latest"))
        return int(found[0].read_text().split("-")[1]) if found else 0

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: (self.steps() or [0])[-1] >= step, SECONDS, f"step {step}; {self.log}")


def deploy(
    server: PrefectServer, pool: str, entrypoint: str, parameters: dict[str, Any], output: Path, log: Path
) -> Deployed:
    """Create a deployment of a flow of this repository, as `prefect deploy` does, and mark its processes."""
    server.environment[MARK] = uuid.uuid4().hex
    flow = server.ask("POST", "flows/", name=entrypoint.rpartition(":")[2])["id"]
    base = subprocess.run(
        [sys.executable, "-m", "prefect", "work-pool", "get-default-base-job-template", "--type", "process"],
        env=server.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    server.ask("POST", "work_pools/", name=pool, type="process", base_job_template=json.loads(base))
    made = server.ask(
        "POST",
        "deployments/",
        name=pool,
        flow_id=flow,
        work_pool_name=pool,
        entrypoint=entrypoint,
        parameters=parameters,
        enforce_parameter_schema=False,
        pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}],
    )
    return Deployed(server, pool, made["id"], output, log)


def only_worker_left(deployed: Deployed, worker: psutil.Process, reporters: bool = False) -> bool:
    """True if nothing runs but the worker, and with `reporters` the crash reporters."""
    left = [process for process in deployed.processes() if process.pid != worker.pid]
    return all(reporters and "run_guard" in command_of(process) for process in left)


def uninterrupted_losses(training: Deployed, folder: Path, steps: int) -> list[float]:
    """The losses of the same job, not interrupted before this step."""
    config = (training.folder / "config.toml").read_text().replace(str(training.folder), str(folder / "straight"))
    (folder / "straight.toml").write_text(config)
    job = jobs.start("-m", "gpt2train.train", "--config", str(folder / "straight.toml"))
    jobs.wait_for(lambda: len(read_metrics(folder / "straight")) >= steps, job)
    job.terminate()
    assert jobs.finish(job)[0] == 0
    return [row["loss"] for row in read_metrics(folder / "straight")][:steps]
