"""OpenLineage events of the steps that made a corpus and a model, and how they are sent.

Format: OpenLineage 2-0-2 (https://openlineage.io). A step is a job, its folder a dataset; identifiers follow from the
manifests, so that the same events are the same runs for a receiver that gets them twice.
"""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

from gpt2train import __version__
from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import Manifest
from gpt2train.store.output import Origins
from tasks.outputs.passport.facts import Corpus, Training

PRODUCER = f"urn:gpt2train:{__version__}"
SPEC = "https://openlineage.io/spec"
EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
NAMESPACE = "gpt2train"
SEND_SECONDS = 30.0
Event = dict[str, Any]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that raises for a redirect: urllib would send the key to the other host, and a GET without the event."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""


def events(name: str, corpora: Mapping[str, Corpus], training: Training | None = None) -> list[Event]:
    """Return the START and COMPLETE events of all steps whose times are known, in the order of the steps.

    `name` is that of the training's output folder, the first part of the names of datasets; the corpora are given by
    the names of theirs.
    """
    steps = [(name, step.manifest, one.times) for name, one in corpora.items() for step in one.steps]
    if training:
        steps += [(name, made, training.times) for made in (training.manifest, training.merge) if made]
    known = {made.identity: f"{folder}/{made.folder}" for folder, made, _ in steps}
    origins = {folder: Origins(made for other, made, _ in steps if other == folder) for folder, _, _ in steps}
    read = {training.manifest.identity: _read_by(training, corpora)} if training and training.manifest else {}
    found: list[Event] = []
    for folder, made, times in steps:
        if made.step in times:
            inputs = read.get(made.identity, made.inputs | made.read)
            datasets = _datasets(folder, made, inputs, known, origins[folder])
            run = {"runId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"gpt2train:{made.step}:{made.identity}"))}
            job = {"namespace": NAMESPACE, "name": f"{folder}/{made.step}", "facets": {"jobType": JOB}}
            base = {"producer": PRODUCER, "schemaURL": EVENT, "run": run, "job": job, "inputs": datasets}
            begin, end = (time.isoformat(timespec="milliseconds").replace("+00:00", "Z") for time in times[made.step])
            found.append({"eventType": "START", "eventTime": begin, **base, "outputs": []})
            found.append({"eventType": "COMPLETE", "eventTime": end, **base, "outputs": [_output(folder, made)]})
    return found


def _datasets(
    folder: str, made: Manifest, inputs: Mapping[str, str], known: Mapping[str, str], origins: Origins
) -> list[Event]:
    """Return each dataset that a step has read with its version, sorted; an unknown one by the input's name."""
    behind = origins.of(made)
    found = set[tuple[str, str]]()
    for key, identity in inputs.items():
        if identity not in known and key in behind:
            found |= {(f"{folder}/{one.folder}", one.identity) for one in behind[key]}
        else:
            found.add((known.get(identity, f"{folder}/{made.step}:{key}"), identity))
    return [{"namespace": NAMESPACE, "name": name, "facets": _version(version)} for name, version in sorted(found)]


def _read_by(training: Training, corpora: Mapping[str, Corpus]) -> dict[str, str]:
    """Identities of the steps whose outputs a training read; its manifest has hashes of their contents alone."""
    record = training.run.record
    found = dict(record.inputs or (training.manifest.inputs if training.manifest else {}))
    used = {note.fingerprint for note in record.data}
    for name, corpus in corpora.items():
        for made in (step.manifest for step in corpus.steps):
            if made.step == "tokenize" and made.fingerprint in used and made.identity not in found.values():
                found[f"{name}/{made.step}"] = made.identity
    return found


def _output(name: str, made: Manifest) -> Event:
    statistics = {
        "rowCount": made.outcome.kept,
        "size": sum(file.bytes for file in made.outputs),
        "fileCount": len(made.outputs),
    }
    facet = _facet("1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet")
    return {
        "namespace": NAMESPACE,
        "name": f"{name}/{made.folder}",
        "facets": _version(made.identity),
        "outputFacets": {"outputStatistics": facet | statistics},
    }


def _version(identity: str) -> Event:
    facet = _facet("1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet")
    return {"version": facet | {"datasetVersion": identity}}


def _facet(schema: str) -> Event:
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{schema}"}


JOB = _facet("2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet") | {
    "processingType": "BATCH",
    "integration": "GPT2TRAIN",
    "jobType": "STEP",
}


def send(found: list[Event], address: str, key: str | None = None) -> None:
    """Send events, in their order, to a server's endpoint such as http://HOST:5000/api/v1/lineage.

    The API key is sent as a bearer token.

    Raises:
        UserError: the address is no HTTP URL.
        RunError: the server refuses an event, redirects or does not answer.
    """
    if not address.startswith(("http://", "https://")):
        raise UserError(f"--send {address!r} is no HTTP URL; write it as http://HOST:5000/api/v1/lineage")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    opener = urllib.request.build_opener(_NoRedirect)
    for number, event in enumerate(found):
        request = urllib.request.Request(address, json.dumps(event).encode(), headers, method="POST")
        refused = f"event {number + 1} of {len(found)} was not taken by {address}"
        try:
            opener.open(request, timeout=SEND_SECONDS).close()
        except urllib.error.HTTPError as error:
            with error:
                if (target := error.headers.get("Location")) and 300 <= error.code < 400:
                    raise RunError(f"{refused}: it redirects to {target}; give that address to --send") from error
                raise RunError(f"{refused}: {error}") from error
        except (OSError, ValueError) as error:
            raise RunError(f"{refused}: {error}") from error
