"""Artifacts and logs of a run on a real server: during training, after a stop, and at the end."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from gpt2train.store.manifest import Folder, read_manifest
from tests.flows.conftest import Finished, Server
from tests.processes import wait_for

SECONDS = 180.0
INFO, WARNING = 20, 30


def ask(server: Server, what: str, run: str, **more: Any) -> list[dict[str, Any]]:
    """Artifacts, logs or task runs of a flow run."""
    by = {"logs": {"logs": {"flow_run_id": {"any_": [run]}}}}.get(what, {"flow_runs": {"id": {"any_": [run]}}})
    found: list[dict[str, Any]] = server.ask("POST", f"{what}/filter", **{**by, **more})
    return found


def last_run(server: Server, flow: str) -> str:
    """The flow run that began last; empty before there is one."""
    wanted = {"flows": {"name": {"any_": [flow]}}, "sort": "START_TIME_DESC", "limit": 1}
    found = server.ask("POST", "flow_runs/filter", **wanted)
    return str(found[0]["id"]) if found else ""


def artifacts(server: Server, run: str) -> dict[str, dict[str, Any]]:
    found = ask(server, "artifacts", run)
    by_key = {artifact["key"]: artifact for artifact in found}
    assert len(by_key) == len(found), "an artifact has more than one version"
    return by_key


def test_the_final_artifacts_have_the_funnel_the_scores_and_the_paths(finished: Finished, server: Server) -> None:
    run = first_run(server)
    shown = artifacts(server, run)
    result = shown["result"]["data"]
    assert re.search(r"^\| download \| [\d,]+ \| [\d,]+ \| .*not found", result, re.M)
    assert (
        "whole word, accuracy" in result
        and "lambada openai" not in result
        and "![loss curve](data:image/png;base64," in result
    )
    for path in (
        "report/report.html",
        f"runs/{finished.run.name}/eval/lambada.json",
        f"runs/{finished.run.name}/model",
    ):
        assert f"`{finished.output / path}`" in result
    assert f"gpt2train serve --model {finished.run}/model" in result
    steps = shown["steps"]["data"].splitlines()
    assert len(steps) == 2 + 14 and all("| done |" in line for line in steps[2:])
    assert shown["training"]["data"].startswith("![loss curve](data:image/png;base64,")
    assert re.search(r"\| step \| loss \|.*\| tokens/s \|", shown["training"]["data"])
    assert shown["training-progress"]["data"] == 100.0
    assert "dropped: not found" in shown["download-counts"]["data"]
    assert shown["result"]["task_run_id"] is None and shown["training"]["task_run_id"] is not None
    # Nothing of 8 steps on a small list is worth a warning.
    assert "warnings" not in shown


def test_the_log_lines_of_rank_0_are_in_the_log_once(finished: Finished, server: Server) -> None:
    lines = ask(server, "logs", first_run(server), limit=200, sort="TIMESTAMP_ASC")
    steps = [line["message"] for line in lines if re.match(r"step \d+/8 ", line["message"])]
    assert [int(line.split("/")[0][5:]) for line in steps] == list(range(1, 9))
    assert all(line["task_run_id"] for line in lines if line["message"].startswith("step "))
    assert [line for line in finished.stderr.splitlines() if line.startswith("step ")] == steps


def test_each_step_is_an_asset_made_from_those_that_it_read(finished: Finished, server: Server) -> None:
    wanted = {"event": {"name": ["prefect.asset.materialization.succeeded"]}}
    events = server.ask("POST", "events/filter", filter=wanted, limit=50)["events"]
    made = {
        event["resource"]["prefect.resource.id"]: {
            related["prefect.resource.id"]
            for related in event["related"]
            if related["prefect.resource.role"] == "asset"
        }
        for event in events
    }
    out = f"file://{finished.output}"
    run = f"file://{finished.run}"
    assert made[f"{out}/tokens"] == {f"{out}/shuffled", f"{out}/tokenizer"}
    assert {f"{out}/tokens", f"{out}/tokenizer"} <= made[run]
    assert made[f"{out}/documents"] == {f"{out}/pages"}
    [payload] = [event["payload"] for event in events if event["resource"]["prefect.resource.id"] == f"{out}/tokens"]
    manifest = read_manifest(Folder(finished.output) / "tokens")
    assert manifest is not None and payload["fingerprint"] == manifest.fingerprint
    assert payload["rows"] == manifest.outcome.kept and payload["bytes"] > 0


def first_run(server: Server) -> str:
    """The run of fixture `finished`, whose database the server uses."""
    wanted = {"flows": {"name": {"any_": ["pipeline"]}}, "sort": "START_TIME_ASC", "limit": 1}
    found = server.ask("POST", "flow_runs/filter", **wanted)
    return str(found[0]["id"])


@pytest.mark.exhaustive
def test_artifacts_during_training_show_progress_and_warnings(
    finished: Finished, server: Server, tmp_path: Path
) -> None:
    """A warm-up of more than half the steps is a warning that every rank writes."""
    mini = finished.mini.another(tmp_path / "mini")
    flags = ["--data", str(finished.output), "--output", str(tmp_path / "out"), "--train.steps", "20000"]
    flags += [
        "--train.schedule.warmup",
        "15000",
        "--train.checkpoints.interval",
        "5000",
        "--train.logging.interval",
        "20",
    ]
    before = last_run(server, "pretrain")
    command = mini.start("pretrain", *flags, **server.environment)
    try:
        wait_for(lambda: last_run(server, "pretrain") not in ("", before), SECONDS, "the run")
        run = last_run(server, "pretrain")
        keys = {"steps", "warnings", "training", "training-progress"}
        wait_for(lambda: keys <= set(artifacts(server, run)), SECONDS, "what a training shows")
        begun = artifacts(server, run)
        assert re.search(
            r"^training: step [\d,]+ of 20,000, [\d,]+ tokens/s, [\d:]+ left$", begun["training"]["description"]
        )
        assert "| train | **running** |" in begun["steps"]["data"]
        assert (
            "**train**" in begun["warnings"]["data"] and "the warm-up takes 15000 of 20000" in begun["warnings"]["data"]
        )
        [train] = [one for one in ask(server, "task_runs", run) if one["name"] == "train"]
        assert train["state_name"] == "Running" and begun["training-progress"]["task_run_id"] == train["id"]
        # Artifacts are updated in place, without a new row for each version.
        done = begun["training-progress"]["data"]
        wait_for(lambda: artifacts(server, run)["training-progress"]["data"] > done, SECONDS, "progress")
        assert artifacts(server, run)["training-progress"]["id"] == begun["training-progress"]["id"]
        warned = [line for line in ask(server, "logs", run, limit=200) if "the warm-up takes" in line["message"]]
        assert [line["level"] for line in warned] == [WARNING]  # of two ranks, logged once

        def stepped() -> list[int]:
            lines = ask(server, "logs", run, limit=200)
            return [line["level"] for line in lines if line["message"].startswith("step 20/")]

        wait_for(stepped, SECONDS, "a step in the log")
        assert stepped() == [INFO]
    finally:
        command.send_signal(signal.SIGINT)
        command.wait(SECONDS)
    assert "| train | **stopped** |" in artifacts(server, run)["steps"]["data"]
    mini.wait_for_the_end()
