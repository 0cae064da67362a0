"""Events of runs, made once more by OpenLineage's own client."""

import json
from typing import Any

import pytest


def remade(event: dict[str, Any]) -> Any:
    """The event as the client's classes check and write it; what is empty is left out."""
    v2 = pytest.importorskip("openlineage.client.event_v2", reason="the package openlineage-python is missing")
    from openlineage.client.generated import base, dataset_version_dataset, job_type_job
    from openlineage.client.generated import output_statistics_output_dataset as statistics
    from openlineage.client.serde import Serde

    def filled(kind: Any, facet: dict[str, Any]) -> Any:
        assert facet["_schemaURL"] == kind._get_schema()
        return kind(producer=facet["_producer"], **{k: v for k, v in facet.items() if not k.startswith("_")})

    def dataset(kind: Any, found: dict[str, Any], **facets: Any) -> Any:
        version = filled(dataset_version_dataset.DatasetVersionDatasetFacet, found["facets"]["version"])
        return kind(namespace=found["namespace"], name=found["name"], facets={"version": version}, **facets)

    def output(found: dict[str, Any]) -> Any:
        counts = found["outputFacets"]["outputStatistics"]
        kept = {"outputStatistics": filled(statistics.OutputStatisticsOutputDatasetFacet, counts)}
        return dataset(v2.OutputDataset, found, outputFacets=kept)

    assert event["schemaURL"] == f"{base.BaseEvent._get_schema().partition('#')[0]}#/$defs/RunEvent"
    kind = filled(job_type_job.JobTypeJobFacet, event["job"]["facets"]["jobType"])
    made = v2.RunEvent(
        eventTime=event["eventTime"],
        eventType=v2.RunState(event["eventType"]),
        producer=event["producer"],
        run=v2.Run(**event["run"]),
        job=v2.Job(**event["job"] | {"facets": {"jobType": kind}}),
        inputs=[dataset(v2.InputDataset, one) for one in event["inputs"]],
        outputs=[output(one) for one in event["outputs"]],
    )
    return without_empty(json.loads(Serde.to_json(made)))


def without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_empty(v) for k, v in value.items() if v != {}}
    return [without_empty(one) for one in value] if isinstance(value, list) else value
