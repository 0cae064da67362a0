"""The commands of docs/operate/server.md as written: from a new server to a finished training."""

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.settings import deployment_names
from tests.flows.prefect_server import ROOT, PrefectServer, running_server
from tests.flows.small_tokens import TRAIN, prepare_scored_data
from tests.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = (ROOT / "docs/operate/server.md").read_text()
[LINES] = re.findall(r"## Five lines.*?```\n(.*?)```", PAGE, re.S)
SERVER, POOL, DEPLOY, WORKER, RUN = LINES.splitlines()


def arguments(line: str) -> list[str]:
    """Arguments of `prefect` in a line of the page, without the option that the tests add themselves."""
    program, *rest = shlex.split(line)
    assert program == "prefect"
    return [word for word in rest if word != "--no-prompt"]


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PrefectServer, Path]]:
    """Server after the first three commands of the page, and a working folder with tokens."""
    folder = tmp_path_factory.mktemp("operate")
    prepare_scored_data(folder / "out/demo")
    assert SERVER == "prefect server start"
    with running_server(folder / "prefect") as running:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        server = dataclasses.replace(running, environment={**running.environment, "PYTHONPATH": path})
        missing = server.prefect(*arguments(DEPLOY)[:1], "--name", "tiny", *arguments(DEPLOY)[2:])
        assert "references work pool 'gpt2train' which does not exist" in " ".join(missing.stdout.split())
        for line in (POOL, DEPLOY):
            done = server.prefect(*arguments(line))
            assert done.returncode == 0, done.stdout + done.stderr
        yield server, folder


def ask_run(server: PrefectServer, deployment: str, **parameters: Any) -> Any:
    """A run created over the API, or the text of the refusal."""
    try:
        found = server.ask("GET", f"deployments/name/{deployment}")
        return server.ask("POST", f"deployments/{found['id']}/create_flow_run", parameters=parameters)
    except httpx.HTTPStatusError as error:
        return error.response.json()["detail"]


def test_every_deployment_is_registered(operated: tuple[PrefectServer, Path]) -> None:
    server, _ = operated
    found = server.ask("POST", "deployments/filter", limit=50)
    flows = {flow["id"]: flow["name"] for flow in server.ask("POST", "flows/filter", limit=50)}
    assert sorted(f"{flows[one['flow_id']]}/{one['name']}" for one in found) == deployment_names()
    assert all(one["enforce_parameter_schema"] and one["description"] for one in found)


def test_a_wrong_parameter_is_refused_by_name(operated: tuple[PrefectServer, Path]) -> None:
    server, _ = operated
    unknown = server.prefect(*arguments(RUN), "--param", "stepz=3")
    assert unknown.returncode == 1 and "not found on the deployment: 'stepz'" in unknown.stdout
    assert "'stepz' was unexpected" in ask_run(server, "pretrain/345m", train={"stepz": 3})
    assert "field 'train.model.layers'" in ask_run(server, "pretrain/345m", train={"model": {"layers": 0}})
    assert "'354m' is not one of" in ask_run(server, "pretrain/345m", preset="354m")
    assert server.ask("POST", "flow_runs/filter", limit=5) == []


def fill_the_pool(server: PrefectServer) -> str:
    """Limit the pool to one run, and create one that counts as running; its id."""
    assert server.prefect("work-pool", "set-concurrency-limit", "gpt2train", "1").returncode == 0
    busy: str = ask_run(server, "pretrain/tiny")["id"]
    for kind in ("PENDING", "RUNNING"):
        server.ask("POST", f"flow_runs/{busy}/set_state", state={"type": kind}, force=True)
    return busy


def test_the_documented_commands_end_in_a_finished_training(operated: tuple[PrefectServer, Path]) -> None:
    """The last two commands, with a smaller deployment; before them no worker takes a run."""
    server, folder = operated
    wrong = ask_run(server, "pretrain/tiny", train={"schedule": {"warmup": 7000}})

    def state(name: str) -> bool:
        return bool(server.ask("GET", f"flow_runs/{wrong['id']}")["state"]["name"] == name)

    def pool(status: str) -> bool:
        return bool(server.ask("GET", "work_pools/gpt2train")["status"] == status)

    wait_for(lambda: state("Late"), 120, "the run to be late: no worker")
    assert pool("NOT_READY")
    busy = fill_the_pool(server)
    words = arguments(WORKER)
    assert words[:3] == ["worker", "start", "--pool"]
    with server.worker(words[3], folder / "worker.log", folder):
        wait_for(lambda: pool("READY"), 120, "the worker")
        assert state("Late")
        assert "concurrency_limit=1" in server.prefect("work-pool", "inspect", "gpt2train").stdout
        assert state("Late")
        assert server.prefect("work-pool", "clear-concurrency-limit", "gpt2train").returncode == 0
        run = [word.replace("345m", "tiny") for word in arguments(RUN)]
        given = {"output": "out/mine", "data": "out/demo", "launch": {"processes": 1}, "train": TRAIN}
        for name, value in given.items():
            run += ["--param", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        done = server.prefect(*run, "--watch", seconds=600)
        assert done.returncode == 0, done.stdout + (folder / "worker.log").read_text()[-3000:]
        wait_for(lambda: state("Failed"), 120, "the wrong run to fail")
    [found] = [one for one in server.ask("POST", "flow_runs/filter", limit=5) if one["id"] not in (wrong["id"], busy)]
    assert found["state"]["name"] == "Completed"
    assert found["parameters"] == {"config": "pretrain/tiny", **given}
    of_run = {"any_": [found["id"]]}
    pages = server.ask("POST", "artifacts/filter", flow_runs={"id": of_run})
    page = next(one["data"] for one in pages if one["key"] == "result")
    assert all(part in page for part in ("model (Hugging Face)", "| whole word, accuracy |", "perplexity.json")), page
    lines = server.ask("POST", "logs/filter", logs={"flow_run_id": of_run}, limit=200)
    assert any(line["message"].startswith("step 2/2 ") for line in lines)  # of a rank: by the variables of the pool
    [trained] = (folder / "out/mine/runs").iterdir()  # where the worker was started
    assert (trained / "model/model.safetensors").exists() and (trained / "model/tokenizer.json").exists()
    config = (trained / "config.toml").read_text()
    assert "steps = 2\n" in config and "hidden = 16\n" in config
    assert trained.name.startswith("tiny-") and "min_lr = 0.0001\n" in config  # of the preset, below what was given
    message = server.ask("GET", f"flow_runs/{wrong['id']}")["state"]["message"]
    assert "schedule.warmup 7000 must be below steps 450" in message and "\n" not in message
    logs = server.ask("POST", "logs/filter", logs={"flow_run_id": {"any_": [wrong["id"]]}})
    assert [line["message"] for line in logs if "Traceback" in line["message"]] == []
    assert message in [line["message"] for line in logs]
