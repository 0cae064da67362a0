"""Rules of the OpenLineage specification 2-0-2 for the events of runs, and its own schemas where a folder has them."""

import json
import os
import re
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

SPEC = "GPT2TRAIN_OPENLINEAGE_SPEC"  # folder with the schemas of the specification: OpenLineage.json and facets
TYPES = ("START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER")
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")  # RFC 3986, characters alone
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")  # RFC 3339
SCHEMA = re.compile(
    r"https://openlineage\.io/spec/(facets/)?\d+-\d+-\d+/(?P<file>\w+)\.json#/\$defs/(?P<definition>\w+)"
)
# Facets that the events have: key, name of the schema, fields (an optional field has a question mark).
FACETS = {
    "jobType": ("JobTypeJobFacet", {"processingType": str, "integration": str, "jobType?": str}),
    "version": ("DatasetVersionDatasetFacet", {"datasetVersion": str}),
    "outputStatistics": ("OutputStatisticsOutputDatasetFacet", {"rowCount?": int, "size?": int, "fileCount?": int}),
}
BASE = {"_producer": str, "_schemaURL": str}


def violations(event: Any) -> list[str]:
    """Return what an event of a run has against the specification; empty if nothing."""
    fields = {"eventType?": str, "eventTime": str, "producer": str, "schemaURL": str, "run": dict, "job": dict}
    found = _fields("event", event, fields | {"inputs?": list, "outputs?": list})
    if found:
        return found
    if event.get("eventType") not in (None, *TYPES):
        found.append(f"event: eventType {event['eventType']!r}")
    if not TIME.fullmatch(event["eventTime"]) or not _is_time(event["eventTime"]):
        found.append(f"event: eventTime {event['eventTime']!r} is no time of RFC 3339")
    found += _uris("event", event, "producer", "schemaURL")
    if not (named := SCHEMA.fullmatch(event["schemaURL"])) or named["definition"] != "RunEvent":
        found.append(f"event: schemaURL {event['schemaURL']!r} is not that of a RunEvent")
    found += _fields("run", event["run"], {"runId": str, "facets?": dict})
    if not found and not _is_uuid(event["run"]["runId"]):
        found.append(f"run: runId {event['run']['runId']!r} is no UUID")
    found += _named("job", event["job"], "facets")
    for key, own in (("inputs", "inputFacets"), ("outputs", "outputFacets")):
        for number, dataset in enumerate(event.get(key, [])):
            found += _named(f"{key}[{number}]", dataset, "facets", own)
    return found


def _named(place: str, value: Any, *facets: str) -> list[str]:
    """Check a job or dataset, and the facets under its keys."""
    found = _fields(place, value, {"namespace": str, "name": str} | {f"{key}?": dict for key in facets})
    for key in facets if not found else ():
        for name, facet in value.get(key, {}).items():
            found += _facet(f"{place}.{key}.{name}", name, facet)
    return found


def _facet(place: str, name: str, facet: Any) -> list[str]:
    if name not in FACETS:
        return [f"{place}: no rule for this facet"]
    schema, fields = FACETS[name]
    found = _fields(place, facet, BASE | fields) or _uris(place, facet, *BASE)
    named = SCHEMA.fullmatch(facet["_schemaURL"]) if not found else None
    if named and (named["file"], named["definition"]) != (schema, schema):
        found.append(f"{place}: _schemaURL {facet['_schemaURL']!r} is not that of {schema}")
    return found


def _fields(place: str, value: Any, fields: dict[str, type]) -> list[str]:
    """Check the types of fields and that none is missing or unknown."""
    if not isinstance(value, dict):
        return [f"{place}: no object"]
    names = {name.rstrip("?"): kind for name, kind in fields.items()}
    found = [f"{place}: {name} is missing" for name in fields if not name.endswith("?") and name not in value]
    found += [f"{place}: {name} is unknown" for name in value if name not in names]
    return found + [
        f"{place}: {name} is no {kind.__name__}"
        for name, kind in names.items()
        if name in value and (not isinstance(value[name], kind) or (kind is int and isinstance(value[name], bool)))
    ]


def _uris(place: str, value: dict[str, Any], *names: str) -> list[str]:
    return [f"{place}: {name} {value[name]!r} is no URI" for name in names if not URI.fullmatch(value[name])]


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def schema_errors(events: list[dict[str, Any]]) -> list[str]:
    """Validate events by the schemas of the specification: the event's own, and that of each facet.

    A schema that the folder has in another version is used in place of the one that the event names. Skips without the
    folder.
    """
    folder = os.environ.get(SPEC)
    if not folder:
        pytest.skip(f"set {SPEC} to the folder spec/ of a checkout of OpenLineage")
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    by_name = {
        path.stem: json.loads(path.read_text())
        for path in sorted(Path(folder).rglob("*.json"))
        if path.stem == "OpenLineage" or path.parent.name == "facets"
    }

    def retrieve(uri: str) -> Any:
        return referencing.Resource.from_contents(by_name[uri.rpartition("/")[2].removesuffix(".json")])

    registry = referencing.Registry(retrieve=retrieve)
    checker = jsonschema.FormatChecker(())
    checker.checks("uri")(lambda value: bool(URI.fullmatch(value)))
    checker.checks("date-time")(lambda value: bool(TIME.fullmatch(value)) and _is_time(value))
    checker.checks("uuid")(_is_uuid)

    def errors(value: Any, url: str) -> list[str]:
        validator = jsonschema.Draft202012Validator({"$ref": url}, registry=registry, format_checker=checker)
        return [f"{url}: {error.json_path}: {error.message}" for error in validator.iter_errors(value)]

    found = []
    for event in events:
        found += errors(event, event["schemaURL"])
        for owner in (event["job"], *event["inputs"], *event["outputs"]):
            for facets in (owner.get(key, {}) for key in ("facets", "inputFacets", "outputFacets")):
                named = [facet for facet in facets.values() if "_schemaURL" in facet]
                found += [error for facet in named for error in errors(facet, facet["_schemaURL"])]
    return found
