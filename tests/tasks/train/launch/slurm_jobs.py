"""Small trainings for a real Slurm, and queries of their state."""

import json
from pathlib import Path
from typing import Any

from gpt2train.config import RunConfig, to_toml
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build
from tasks.train.launch.job import Job
from tasks.train.launch.settings import LaunchSettings
from tests.gpt2train.jobs import make

SECONDS = 180.0
STEPS = 600
NO_END = 1_000_000
# The nodes' names lead nowhere: they are this machine.
SETUP = ("export MASTER_ADDR=127.0.0.1",)


def job_of(tokens: Path, run: Path, launch: dict[str, Any] | None = None, **changes: Any) -> Job:
    """A job of two machines with one rank each, its settings in the run folder as the training step writes them."""
    often = {"checkpoints": {"interval": 50, "keep": 100}, "logging": {"interval": 50}, "validation": {"interval": 300}}
    config: RunConfig = make(tokens, run, **{"steps": STEPS} | often | changes)
    run.mkdir()
    (run / "config.toml").write_text(to_toml(config))
    slurm = {"setup": SETUP, "poll": 0.3, "partition": "main"}
    how = {"launcher": "slurm", "processes": 1, "nodes": 2, "slurm": slurm} | (launch or {})
    return Job(str(run / "config.toml"), build(LaunchSettings, how))


def steps_of(job: Job) -> int:
    return len(read_metrics(job.run))


def number_of(job: Job) -> str:
    return str(json.loads((job.run / "slurm.json").read_text())["job"])
