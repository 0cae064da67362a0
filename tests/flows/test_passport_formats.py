"""The documents of the passport, held against the readers and rules of their formats."""

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpt2train.cli import app, run_command
from gpt2train.errors import RunError
from tasks.outputs.passport.lineage import send
from tests.flows.conftest import Finished
from tests.flows.openlineage_rules import schema_errors, violations
from tests.flows.passport_output import EVENTS, events_of


def test_croissant_reads_the_documents(finished: Finished) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="the package mlcroissant is missing")
    dataset = mlcroissant.Dataset(jsonld=str(finished.output / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    texts = [record["documents/text"].decode() for record in dataset.records("documents")]
    assert sorted(texts) == sorted(
        text
        for path in (finished.output / "shuffled").glob("*.parquet")
        for text in pq.read_table(path)["text"].to_pylist()
    )


def test_spdx_tools_find_the_packages_valid(finished: Finished) -> None:
    parser = pytest.importorskip("spdx_tools.spdx.parser.parse_anything", reason="the package spdx-tools is missing")
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    document = parser.parse_file(str(finished.run / "passport/spdx.json"))
    assert validate_full_spdx_document(document) == []
    assert {"torch", "ftfy", "lxml"} <= {package.name for package in document.packages}


def test_the_events_are_those_of_openlineage_and_form_one_chain(finished: Finished) -> None:
    event_v2 = pytest.importorskip("openlineage.client.event_v2", reason="the package openlineage-python is missing")
    from openlineage.client.generated import dataset_version_dataset, job_type_job, output_statistics_output_dataset
    from openlineage.client.serde import Serde

    def filled(kind: Any, facet: dict[str, Any]) -> Any:
        return kind(producer=facet["_producer"], **{k: v for k, v in facet.items() if not k.startswith("_")})

    def dataset(kind: Any, found: dict[str, Any], **facets: Any) -> Any:
        version = filled(dataset_version_dataset.DatasetVersionDatasetFacet, found["facets"]["version"])
        return kind(namespace=found["namespace"], name=found["name"], facets={"version": version}, **facets)

    def without_empty(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_empty(v) for k, v in value.items() if v != {}}
        return [without_empty(one) for one in value] if isinstance(value, list) else value

    found = [json.loads(line) for line in (finished.run / EVENTS).read_text().splitlines()]
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    for event in found:
        outputs = [
            dataset(
                event_v2.OutputDataset,
                one,
                outputFacets={"outputStatistics": filled(statistics, one["outputFacets"]["outputStatistics"])},
            )
            for one in event["outputs"]
        ]
        job = {"jobType": filled(job_type_job.JobTypeJobFacet, event["job"]["facets"]["jobType"])}
        made = event_v2.RunEvent(
            eventTime=event["eventTime"],
            eventType=event_v2.RunState(event["eventType"]),
            producer=event["producer"],
            run=event_v2.Run(runId=event["run"]["runId"]),
            job=event_v2.Job(namespace=event["job"]["namespace"], name=event["job"]["name"], facets=job),
            inputs=[dataset(event_v2.InputDataset, one) for one in event["inputs"]],
            outputs=outputs,
        )
        assert without_empty(json.loads(Serde.to_json(made))) == without_empty(event)
    ended = [event for event in found if event["eventType"] == "COMPLETE"]
    assert len(ended) * 2 == len(found) and [e["run"] for e in found[::2]] == [e["run"] for e in found[1::2]]
    written = set[str]()
    for event in ended:  # each reads what a step before has written
        inner = {one["name"] for one in event["inputs"] if ":" not in one["name"]}
        assert inner <= written, event["job"]["name"]
        written |= {one["name"] for one in event["outputs"]}
    assert any(name.endswith("/model") for name in written)
    trained = next(event for event in ended if event["job"]["name"].endswith("/train"))
    assert {one["name"].split("/")[-1] for one in trained["inputs"]} == {"tokens", "tokenizer"}


def test_the_events_of_a_training_keep_the_rules_of_openlineage(finished: Finished) -> None:
    found = [json.loads(line) for line in (finished.run / EVENTS).read_text().splitlines()]
    assert [problem for event in found for problem in violations(event)] == []


def test_the_events_of_a_training_are_valid_by_the_schemas_of_openlineage(finished: Finished) -> None:
    assert schema_errors([json.loads(line) for line in (finished.run / EVENTS).read_text().splitlines()]) == []


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Endpoint that keeps what it is sent; it refuses everything after `limit` requests."""

    bodies: list[dict[str, Any]]
    keys: list[str | None]
    limit = 1000
    target = ""  # to which it redirects

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.target:
            self.send_response(int(self.path.rpartition("/")[2]))
            self.send_header("Location", self.target)
            self.end_headers()
            return
        is_taken = len(self.bodies) < self.limit
        if is_taken:
            self.bodies.append(json.loads(body))
            self.keys.append(self.headers["Authorization"])
        self.send_response(201 if is_taken else 422)
        self.end_headers()

    def do_GET(self) -> None:  # what urllib makes of a redirected POST
        self.keys.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def running_endpoint() -> Iterator[tuple[str, type[Endpoint]]]:
    kind = type("Own", (Endpoint,), {"bodies": [], "keys": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api/v1/lineage", kind
        server.shutdown()


@pytest.fixture
def endpoint() -> Iterator[tuple[str, type[Endpoint]]]:
    with running_endpoint() as running:
        yield running


def test_the_key_follows_no_redirect_and_an_event_is_not_lost(endpoint: tuple[str, type[Endpoint]]) -> None:
    address, kind = endpoint
    with running_endpoint() as (elsewhere, other):
        for target in (elsewhere, elsewhere.replace("127.0.0.1", "localhost"), "/moved", "https://127.0.0.1:1/x"):
            kind.target = target
            for status in (301, 302, 303, 307, 308):
                with pytest.raises(RunError, match=rf"redirects to {re.escape(target)}; give that address") as error:
                    send([{"eventType": "COMPLETE"}], f"{address}/{status}", "secret-key")
                assert "secret-key" not in str(error.value)
        assert other.keys == other.bodies == []


def test_events_are_sent_when_asked(
    output: Path,
    endpoint: tuple[str, type[Endpoint]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address, kind = endpoint
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret-key")
    assert run_command(app, ["passport", str(output), "--send", address]) == 0
    sent = [json.dumps(body) for body in kind.bodies]
    assert len(sent) == len(set(sent)) > len(events_of(output)) and set(kind.keys) == {"Bearer secret-key"}
    kind.limit = len(sent) + 1
    assert run_command(app, ["passport", str(output), "--send", address]) == 1
    assert run_command(app, ["passport", str(output), "--send", "file:///etc/passwd"]) == 2
    printed = capsys.readouterr()
    assert (
        "event 2 of" in printed.err
        and "is no HTTP URL" in printed.err
        and "secret-key" not in printed.err + printed.out
    )
