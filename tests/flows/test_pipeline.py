"""The pipeline on a small list: its outputs, cached steps, report, and network connections."""

import json
import re
import resource
import subprocess

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpt2train.store.manifest import Folder, read_manifest
from tests.flows.conftest import Finished, Server
from tests.flows.mini_pipeline import STEPS, lines_of
from tests.flows.network_audit import NetworkAudit


def cached(stderr: str) -> list[str]:
    """Steps that a command reports as cached."""
    return [name for name, rest in lines_of(stderr) if name in STEPS and re.search(r"\bcached\b", rest)]


def test_the_pipeline_ends_with_a_report_and_every_step_in_order(finished: Finished) -> None:
    assert finished.stdout == f"report: {finished.output}/report/report.html\n"
    assert [name for name, _ in lines_of(finished.stderr) if name in STEPS] == STEPS
    assert cached(finished.stderr) == []
    assert "Traceback" not in finished.stderr
    assert "warning" not in finished.stderr.lower(), finished.stderr


def test_the_report_is_self_contained_and_has_the_reject_reasons(finished: Finished) -> None:
    page = (finished.output / "report" / "report.html").read_text()
    assert not re.search(r"<script|<link|src=\"(?!data:)|href=\"http", page)
    for said in ("not found", "redirect loop", "blacklisted domain", "early language", "data:image/png;base64,"):
        assert said in page
    for manifest in (finished.output.glob("*/_manifest.json"), finished.run.glob("*/_manifest.json")):
        for path in manifest:
            if path.parent.name != "report":
                assert json.loads(path.read_text())["fingerprint"] in page, path


def test_decontamination_cuts_the_planted_page(finished: Finished) -> None:
    """The reading notes quote every topic, and so passages of the evaluation set."""
    folder = Folder(finished.output / "decontaminated")
    manifest = read_manifest(folder)
    assert manifest is not None
    dropped = [pq.read_table(folder.path(record.name)) for record in manifest.outcome.rejected]
    cuts = [pq.read_table(folder.path(record.name)) for record in manifest.outcome.audit if "cuts" in record.name]
    touched = {url for table in (*dropped, *cuts) for url in table["url"].to_pylist()}
    assert any("reading-notes" in url for url in touched)


def test_the_merged_model_loads_in_transformers(finished: Finished) -> None:
    folder = finished.run / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The following example", return_tensors="pt").input_ids
    assert model(ids).logits.shape[-1] == model.config.vocab_size == len(tokenizer)


def test_scores_and_samples_are_written(finished: Finished) -> None:
    scores = finished.run / "eval"
    lambada = json.loads((scores / "lambada.json").read_text())
    assert set(lambada["definitions"]) == {"lambada_openai", "last_token", "megatron_strict"}
    passages = (finished.output / "evalset" / "cloze.jsonl").read_text().splitlines()
    assert lambada["passages"] == len(passages) > 5
    assert json.loads((scores / "perplexity.json").read_text())["word_perplexity"] > 1
    assert json.loads((scores / "samples.json").read_text())["samples"]


def test_the_pipeline_connects_to_this_machine_only(finished: Finished) -> None:
    watch = NetworkAudit(finished.mini.folder)
    assert {what for _, what, _ in watch.notes()} >= {"connect", "getaddrinfo"}, "the hook noted nothing"
    assert watch.outside() == []


def test_no_port_is_open_to_other_machines(finished: Finished) -> None:
    owners = " ".join(finished.sockets.found.values())
    assert "flows.orchestration.server" in owners, "the embedded server's port, on loopback, must be among those found"
    assert finished.sockets.outside == {}


def test_no_process_is_left(finished: Finished) -> None:
    finished.mini.wait_for_the_end()
    assert finished.mini.children() == []


def test_a_second_run_is_cached_and_quick(finished: Finished, server: Server) -> None:
    before = (finished.output / "report" / "report.html").stat().st_mtime_ns
    used = cpu_of_children()
    again = finished.mini.run("pipeline", "--output", str(finished.output), **server.environment)
    assert again.returncode == 0, again.stderr
    assert cached(again.stderr) == STEPS
    assert (finished.output / "report" / "report.html").stat().st_mtime_ns == before
    assert cpu_of_children() - used < 20
    assert _prefect_states(server)[: len(STEPS)] == ["Cached"] * len(STEPS)


def cpu_of_children() -> float:
    """CPU seconds of ended commands, with the processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _prefect_states(server: Server) -> list[str]:
    """State names of the last run's task runs, newest first, read from Prefect's own database."""
    import sqlite3

    with sqlite3.connect(server.home / "prefect.db") as database:
        last = "SELECT id FROM flow_run ORDER BY created DESC LIMIT 1"
        rows = database.execute(f"SELECT state_name FROM task_run WHERE flow_run_id = ({last})").fetchall()
    return [name for (name,) in rows]


@pytest.mark.exhaustive
def test_evaluate_scores_a_finished_run(finished: Finished, server: Server) -> None:
    command = [*finished.mini.command("evaluate")[:3], "--run", str(finished.run)]
    environment = finished.mini.environ(**server.environment)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"scores: {finished.run}/eval\n"
