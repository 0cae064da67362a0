"""Artifacts and log lines of a flow run: overview, warnings, a server that does not answer, and those of a real run."""

import logging
import re
import signal
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.ui import log_filter
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.artifacts import StepRow, as_table, counts, steps_summary, steps_table, training, training_summary
from flows.ui.result import next_commands, output_paths
from flows.ui.warnings import LossScaleMonitor, Warnings, near_limit
from gpt2train.store.manifest import FileRecord, Folder, Manifest, Outcome, read_manifest
from tasks.core.reject_limits import LimitSettings
from tasks.train.metrics_tail import polling
from tests.flows.conftest import Finished, Server
from tests.processes import wait_for


def manifest(step: str = "clean", folder: str = "", **outcome: Any) -> Manifest:
    facts = {"fingerprint": "0123", "content": "", "parameters": {}, "inputs": {}, "versions": {}}
    return Manifest(step=step, version=1, folder=folder or step, outcome=Outcome(**outcome), **facts)


def test_the_overview_shows_finished_and_running_steps() -> None:
    cleaned = StepRow("clean", "cached", manifest(seen=2000, kept=1500))
    rows = [cleaned, StepRow("train"), StepRow("x", "failed", None, 75)]
    table = steps_table(rows).splitlines()
    assert table[0] == "| step | state | in | kept | share | time |" and table[1] == "|---|---|---:|---:|---:|---:|"
    assert table[2] == "| clean | cached | 2,000 | 1,500 | 75.0% |  |"
    assert table[3:] == ["| train | **running** |  |  |  |  |", "| x | **failed** |  |  |  | 1:15 |"]
    assert steps_summary(rows) == "steps: 1 cached, 1 failed, train is running"
    # A cell cannot break a table.
    assert as_table([{"a": "x | y\nz"}]).splitlines()[-1] == r"| x \| y z |"
    assert as_table([]) == ""


def test_a_report_that_fails_does_not_end_what_it_reports(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[bool] = []

    def poll(last: bool) -> None:
        calls.append(last)
        raise KeyError("steps")

    with polling(poll, 0.001):
        wait_for(lambda: len(calls) > 2, 60, "some polls")
    assert calls[-1] and caplog.messages == ["warning: a report failed: KeyError: 'steps'"]


def test_long_lists_of_files_are_cut_and_counted() -> None:
    files = tuple(FileRecord(name=f"part-{i}", bytes=1234567, sha256="") for i in range(50))
    text = counts(manifest(seen=9, kept=8, reasons={"too_short": 1}, outputs=files))
    assert "| dropped: too short | 1 |" in text and "1,234,567" in text
    assert "part-19" in text and "part-20" not in text and "and 30 more files" in text


def test_the_artifact_of_a_long_training_stays_small(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """10,000 steps: a picture of less than 100 kB, ten rows. A picture that cannot be drawn is left out."""
    records: list[dict[str, Any]] = [
        {"step": i, "loss": 10 / i**0.2, "tokens": i * 512, "seconds": 0.5, "tokens_per_second": 1024.0, "mfu": 0.41}
        for i in range(1, 10_001)
    ]
    records[4999]["valid_loss"], records[9998]["valid_loss"] = 2.5, 2.6
    text = training(records, 20_000)
    assert len(text) < 150_000 and text.count("\n| ") == 1 + 10
    assert "step 10,000 of 20,000, 1,024 tokens/s, 1:23:20 left" in text
    assert "validation loss 2.6000 at step 9,999; the best was 2.5000 at step 5,000" in text
    assert training_summary([*records, {"step": 20_000, "seconds": None}], 20_000) == "step 20,000 of 20,000"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = training([{"step": step, "loss": 2.0, "tokens_per_second": 5.0} for step in (1, 2)], 4)
    assert text.startswith("**step 2 of 4") and "tokens seen" not in text
    assert "no picture: ModuleNotFoundError" in caplog.text


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[logging.Logger, dict[str, Any]]]:
    shown: dict[str, Any] = {}
    publisher = ArtifactPublisher()
    monkeypatch.setattr(publisher, "publish", lambda key, make, words, **how: shown.update({key: (make(), words)}))
    logger, handler = logging.getLogger("test-warned"), Warnings(publisher)
    logger.addHandler(handler)
    yield logger, shown
    logger.removeHandler(handler)


def test_warnings_are_merged_without_secrets_and_bounded(warned: tuple[logging.Logger, dict[str, Any]]) -> None:
    logger, shown = warned
    for step in (12, 13, 17):
        logger.warning("step %d skipped: a spike", step)
    logger.error("no way on to s3://key:secret@host/x")
    logger.info("of no interest")
    lines, words = shown["warnings"]
    assert len(lines.splitlines()) == 2 and "3 times from" in lines and "step 17 skipped" in lines
    assert "**error**" in lines and words.startswith("4 warnings; the last: no way on")
    assert "secret" not in str(shown)
    for i in range(296):
        logger.warning("warning %s", "abcdefghij"[i % 10] * (1 + i // 10))
    lines, words = shown["warnings"]
    assert len(lines.splitlines()) == 101 and "and 198 others" in lines and words.startswith("300 warnings")


@pytest.mark.parametrize(
    ("seen", "rejected", "warns"), [(10_000, 7_500, False), (10_000, 7_700, True), (900, 890, False)]
)
def test_rejects_near_their_limit_give_a_warning(seen: int, rejected: int, warns: bool) -> None:
    found = manifest("clean", seen=seen, kept=seen - rejected, reasons={"too_short": rejected})
    warning = near_limit(found, LimitSettings())
    assert (warning is not None) == warns
    assert near_limit(found, None) is None
    assert warning is None or "clean rejected 77.0% of 10,000 rows; above limits.clean = 0.95" in warning


def test_a_falling_loss_scale_gives_one_warning_for_every_six_halvings() -> None:
    watch, records, warnings = LossScaleMonitor(), [], []
    for step, power in enumerate([16, 16, 12, 11, 10, 10, 9, 8, 4, 3], 1):
        records.append({"step": step, "loss_scale": 2.0**power})
        warnings.append(watch.check(records))
    assert [step for step, words in enumerate(warnings, 1) if words] == [5, 9]
    assert str(warnings[4]).startswith("the loss scale fell from 2^16 to 2^10 by step 5")
    assert LossScaleMonitor().check([{"step": 1}]) is None


def test_the_result_names_the_outputs_and_the_next_command(tmp_path: Any) -> None:
    root = Folder(str(tmp_path))
    training = manifest("train", "runs/tiny-1")
    assert next_commands(root, [training])[0]["command"] == f"`python -m flows.evaluate --run {tmp_path}/runs/tiny-1`"
    both = [training, manifest("merge", "runs/tiny-1/model")]
    assert next_commands(root, both)[0]["command"] == f"`gpt2train serve --model {tmp_path}/runs/tiny-1/model`"
    assert {"what": "logs of the ranks", "where": f"`{tmp_path}/runs/tiny-1/logs`"} in output_paths(root, both)
    assert next_commands(root, [manifest("tokenize")])[0]["command"].startswith("`python -m flows.pretrain --data ")
    missed = next_commands(root, [manifest("download", facts={"retryable": 1200})])[0]
    assert "1,200 pages" in missed["to"] and "--param retry_failed=true" in missed["command"]
    assert next_commands(root, [manifest("download", facts={"retryable": 0})]) == []
    tokens = manifest("tokenize", "tokens")
    assert {"what": "tokens", "where": f"`{tmp_path}/tokens`"} in output_paths(root, [tokens])
    assert {"what": "tokens", "where": "`memory://b/out/tokens`"} in output_paths(Folder("memory://b/out"), [tokens])


def test_a_server_that_does_not_answer_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_run = ArtifactPublisher()
    without_a_run.publish("steps", lambda: pytest.fail("the page of no run was made"), "one")
    without_a_run.close()
    assert not without_a_run.has("steps")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid.uuid4()))  # as in a process that a worker started
    made = []
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        publisher = ArtifactPublisher()
        publisher.publish("steps", lambda: made.append(1), "one", of_step=False)
        publisher.publish("steps", lambda: made.append(2), "two", of_step=False)
        publisher.close()
    assert made == [2] and publisher.has("steps")


def test_a_server_that_never_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid.uuid4()))
    monkeypatch.setattr("flows.ui.artifact_publisher.CLOSE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: address}), caplog.at_level(logging.WARNING, "gpt2train"):
            publisher = ArtifactPublisher()
            publisher.publish("key", lambda: "text", "about", of_step=False)
            publisher.close()
    assert "the last artifacts were not written within" in caplog.text


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("Completed()", None),
        ("Cached(message='done before: fingerprint 0123')", None),
        ("Failed('no space left')", "dedup band-00003: Finished in state Failed('no space left')"),
        ("Crashed('Execution was aborted')", "dedup band-00003: Finished in state Crashed('Execution was aborted')"),
    ],
)
def test_only_ends_that_say_something_are_logged_with_the_name_of_their_task_run(state: str, line: str | None) -> None:
    log_filter.install()
    name, message, extra = "prefect.task_runs", f"Finished in state {state}", {"task_run_name": "dedup band-00003"}
    record = logging.getLogger(name).makeRecord(name, logging.INFO, "", 0, message, (), None, extra=extra)
    kept = logging.getLogger(name).filter(record)
    assert (record.getMessage() if kept else None) == line
    flow_run = logging.makeLogRecord({"name": "prefect.flow_runs", "msg": "Finished in state Completed()"})
    assert logging.getLogger("prefect.flow_runs").filter(flow_run)


SECONDS = 180.0


def ask(server: Server, what: str, run: str, **more: Any) -> list[dict[str, Any]]:
    by = {"logs": {"logs": {"flow_run_id": {"any_": [run]}}}}.get(what, {"flow_runs": {"id": {"any_": [run]}}})
    found: list[dict[str, Any]] = server.ask("POST", f"{what}/filter", **{**by, **more})
    return found


def last_run(server: Server, flow: str, order: str = "START_TIME_DESC") -> str:
    """The flow run that began last, or first in another order; empty before there is one."""
    found = server.ask("POST", "flow_runs/filter", flows={"name": {"any_": [flow]}}, sort=order, limit=1)
    return str(found[0]["id"]) if found else ""


def first_run(server: Server) -> str:
    """The run of fixture `finished`, whose database the server uses."""
    return last_run(server, "pipeline", "START_TIME_ASC")


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
    assert "whole word, accuracy" in result and "lambada openai" not in result
    assert "![loss curve](data:image/png;base64," in result
    for path in (finished.output / "report/report.html", finished.run / "eval/lambada.json", finished.run / "model"):
        assert f"`{path}`" in result
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
    assert {line["level"] for line in lines if line["message"] in steps} == {logging.INFO}
    assert [line for line in finished.stderr.splitlines() if line.startswith("step ")] == steps


def test_each_step_is_an_asset_made_from_those_that_it_read(finished: Finished, server: Server) -> None:
    wanted = {"event": {"name": ["prefect.asset.materialization.succeeded"]}}
    events = server.ask("POST", "events/filter", filter=wanted, limit=50)["events"]
    made = {
        event["resource"]["prefect.resource.id"]: {
            one["prefect.resource.id"] for one in event["related"] if one["prefect.resource.role"] == "asset"
        }
        for event in events
    }
    out, run = f"file://{finished.output}", f"file://{finished.run}"
    assert made[f"{out}/tokens"] == {f"{out}/shuffled", f"{out}/tokenizer"}
    assert {f"{out}/tokens", f"{out}/tokenizer"} <= made[run]
    assert made[f"{out}/documents"] == {f"{out}/pages"}
    [payload] = [event["payload"] for event in events if event["resource"]["prefect.resource.id"] == f"{out}/tokens"]
    manifest = read_manifest(Folder(finished.output) / "tokens")
    assert manifest is not None and payload["fingerprint"] == manifest.fingerprint
    assert payload["rows"] == manifest.outcome.kept and payload["bytes"] > 0


@pytest.mark.exhaustive
def test_artifacts_during_training_show_progress_and_warnings(
    finished: Finished, server: Server, tmp_path: Path
) -> None:
    """A warm-up of more than half the steps is a warning that every rank writes."""
    mini = finished.mini.another(tmp_path / "mini")
    flags = ["--data", str(finished.output), "--output", str(tmp_path / "out")]
    flags += ["--train.steps", "20000", "--train.schedule.warmup", "15000", "--train.checkpoints.interval", "5000"]
    flags += ["--train.logging.interval", "20"]
    before = last_run(server, "pretrain")
    command = mini.start("pretrain", *flags, **server.environment)
    try:
        wait_for(lambda: last_run(server, "pretrain") not in ("", before), SECONDS, "the run")
        run = last_run(server, "pretrain")
        keys = {"steps", "warnings", "training", "training-progress"}
        wait_for(lambda: keys <= set(artifacts(server, run)), SECONDS, "what a training shows")
        begun = artifacts(server, run)
        said = r"training: step [\d,]+ of 20,000, [\d,]+ tokens/s, [\d:]+ left"
        assert re.fullmatch(said, begun["training"]["description"])
        assert "| train | **running** |" in begun["steps"]["data"]
        assert all(part in begun["warnings"]["data"] for part in ("**train**", "the warm-up takes 15000 of 20000"))
        [train] = [one for one in ask(server, "task_runs", run) if one["name"] == "train"]
        assert train["state_name"] == "Running" and begun["training-progress"]["task_run_id"] == train["id"]
        # Artifacts are updated in place, without a new row for each version.
        done = begun["training-progress"]["data"]
        wait_for(lambda: artifacts(server, run)["training-progress"]["data"] > done, SECONDS, "progress")
        assert artifacts(server, run)["training-progress"]["id"] == begun["training-progress"]["id"]
        warned = [line for line in ask(server, "logs", run, limit=200) if "the warm-up takes" in line["message"]]
        assert [line["level"] for line in warned] == [logging.WARNING]  # of two ranks, logged once
    finally:
        command.send_signal(signal.SIGINT)
        command.wait(SECONDS)
    assert "| train | **stopped** |" in artifacts(server, run)["steps"]["data"]
    mini.wait_for_the_end()
