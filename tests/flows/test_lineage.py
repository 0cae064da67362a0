"""Lineage of a corpus of all sources: the edges between its steps in every place that shows them, and its events."""

import json
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.orchestration import assets
from flows.orchestration.assets import AssetLineage
from gpt2train import __version__
from gpt2train.store.output import IDENTITY, MANIFEST, Folder, Manifest, Origins, Output
from tasks.outputs.forget.command import forget
from tasks.outputs.passport.facts import corpus_facts
from tasks.outputs.passport.lineage import events
from tests.flows.openlineage_events import remade, without_empty
from tests.tasks.cloze.test_step import story
from tests.tasks.outputs.forget.corpus import html, run_flow, serve
from tests.tasks.web_server import running_site

# Folder of each step -> folders of the steps that it reads, in the order in which they run.
EDGES: dict[str, set[str]] = {
    "discover": set(),
    "urls": {"discover"},
    "pages": {"urls"},
    "warcs": set(),
    "webpages": set(),
    "documents": {"pages", "warcs", "webpages"},
    "texts": set(),
    "boilerplate": {"documents", "texts"},
    "clean": {"boilerplate"},
    "evalset": {"clean"},
    "decontaminated": {"clean", "evalset"},
    "dedup": {"decontaminated"},
    "substrings": {"dedup"},
    "shuffled": {"substrings"},
    "tokenizer": {"shuffled"},
    "tokens": {"shuffled", "tokenizer"},
}
FROM_OUTSIDE = {"discover", "urls", "warcs", "webpages", "texts"}  # steps that take inputs that no step has made


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lineage") / "out"
    with running_site() as site:
        settings = serve(site, tmp_path_factory.mktemp("sources"))
        found = "".join(f"<url><loc>http://d.test/{name}</loc></url>" for name in ("Wim", "Xena"))
        sitemap = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{found}</urlset>'.encode()
        site.handlers["/sitemap.xml"] = lambda handler: handler.answer(sitemap, "application/xml")
        for name in ("Wim", "Xena"):
            page = html(story(name))
            site.handlers[f"/{name}"] = lambda handler, page=page: handler.answer(page, "text/html; charset=utf-8")  # type: ignore[misc]
        settings |= {"domains": ["http://d.test"], "discover": {"methods": ["sitemaps"]}}
        run_flow(out, settings | {"boilerplate": {"enabled": True}, "substrings": {"enabled": True}})
    return out


@pytest.fixture
def out(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "out"))


def manifests_of(out: Path) -> dict[str, Manifest]:
    found = (Manifest.model_validate_json((out / folder / MANIFEST).read_bytes()) for folder in EDGES)
    return {manifest.folder: manifest for manifest in found}


def of_origins(out: Path, _: pytest.MonkeyPatch) -> dict[str, set[str]]:
    made = manifests_of(out)
    origins = Origins(made.values())
    return {name: {one.folder for found in origins.of(m).values() for one in found} for name, m in made.items()}


def of_events(out: Path, _: pytest.MonkeyPatch) -> dict[str, set[str]]:
    found = [event for event in events("out", {"out": corpus_facts(Folder(out))}) if event["eventType"] == "COMPLETE"]
    return {
        event["outputs"][0]["name"][4:]: {one["name"][4:] for one in event["inputs"] if ":" not in one["name"]}
        for event in found
    }


def of_assets(out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    made: dict[str, set[str]] = {}
    monkeypatch.setattr(assets, "materialize", lambda key, read, *_: made.update({key: set(read)}))
    lineage, root = AssetLineage(), Folder(out)
    for name, manifest in manifests_of(out).items():  # as `PrefectRunner` does for each step
        lineage.add_folder(manifest.step, root / name)
        lineage.materialize(manifest)
    start = f"file://{out}/"
    return {key.removeprefix(start): {one.removeprefix(start) for one in read} for key, read in made.items()}


@pytest.mark.parametrize("edges_of", [of_origins, of_events, of_assets])
def test_every_edge_between_the_steps_is_shown(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, edges_of: Callable[[Path, pytest.MonkeyPatch], dict[str, set[str]]]
) -> None:
    assert edges_of(corpus, monkeypatch) == EDGES


def test_every_input_that_is_a_step_leads_to_one(corpus: Path) -> None:
    made = manifests_of(corpus)
    origins = Origins(made.values())
    for name, manifest in made.items():
        known = manifest.inputs | manifest.read
        steps = {key for key, identity in known.items() if IDENTITY.fullmatch(identity)}
        assert steps <= origins.of(manifest).keys(), name
        assert steps or name in FROM_OUTSIDE, name


def test_the_browser_shows_each_step_after_those_that_it_reads(corpus: Path) -> None:
    found = [step.name for step in Output(Folder(corpus)).steps]
    assert all(found.index(one) < found.index(name) for name, read in EDGES.items() for one in read)


def test_the_cards_count_every_source(corpus: Path) -> None:
    """Two sources or more are one input of the next step, which is the output of none of them."""
    facts = corpus_facts(Folder(corpus))
    assert {step.name for step in facts.steps} == EDGES.keys()
    made = manifests_of(corpus)
    sources = [made[name] for name in ("pages", "warcs", "webpages", "texts")]
    counts = {one.step: (one.outcome.seen, one.outcome.kept) for one in sources}
    assert {one.step: (one.seen, one.kept) for one in facts.sources} == counts
    assert facts.dropped[("download", "not_found")] == made["pages"].outcome.reasons["not_found"]


def test_the_edges_lead_on_after_a_removal_and_a_repeated_discovery(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = manifests_of(out)
    forget(("http://d.test/Wim",), output=str(out), yes=True)
    kept = [name for name in EDGES if (out / name / MANIFEST).exists()]
    made = {name: Manifest.model_validate_json((out / name / MANIFEST).read_bytes()) for name in kept}
    assert made["discover"].identity != before["discover"].identity
    assert made["urls"].read == {"discover": made["discover"].identity}
    assert {one.folder for one in Origins(made.values()).of(made["urls"])["discover"]} == {"discover"}
    # The same lists found once more with other captures: the step `blacklist` is not run again.
    again = before | {"discover": before["discover"].model_copy(update={"content": "0" * 32})}
    assert Origins(again.values()).of(again["urls"]) == {"discover": (again["discover"],)}


def test_a_manifest_without_other_steps_is_that_of_an_older_release(corpus: Path) -> None:
    for folder in EDGES:
        found = json.loads((corpus / folder / MANIFEST).read_text())
        assert ("read" in found) == (folder == "urls")
        assert Manifest.model_validate(found).model_dump(mode="json") == found


def test_an_event_has_the_fields_of_openlineage(corpus: Path) -> None:
    made = manifests_of(corpus)
    found = events("out", {"out": corpus_facts(Folder(corpus))})
    assert len(found) == 2 * len(EDGES) and [event["eventType"] for event in found[-2:]] == ["START", "COMPLETE"]
    outcome, producer, spec = made["tokens"].outcome, f"urn:gpt2train:{__version__}", "https://openlineage.io/spec"

    def facet(version: str, name: str, **fields: Any) -> dict[str, Any]:
        return {"_producer": producer, "_schemaURL": f"{spec}/facets/{version}/{name}.json#/$defs/{name}", **fields}

    def dataset(folder: str) -> dict[str, Any]:
        version = facet("1-0-1", "DatasetVersionDatasetFacet", datasetVersion=made[folder].identity)
        return {"namespace": "gpt2train", "name": f"out/{folder}", "facets": {"version": version}}

    counts = {"rowCount": outcome.kept, "size": sum(one.bytes for one in outcome.outputs)}
    statistics = facet("1-0-2", "OutputStatisticsOutputDatasetFacet", **counts, fileCount=len(outcome.outputs))
    kinds = {"processingType": "BATCH", "integration": "GPT2TRAIN", "jobType": "STEP"}
    event = dict(found[-1])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event.pop("eventTime"))
    assert str(uuid.UUID(event["run"]["runId"])) == event.pop("run")["runId"] == found[-2]["run"]["runId"]
    assert event == {
        "eventType": "COMPLETE",
        "producer": producer,
        "schemaURL": f"{spec}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "job": {
            "namespace": "gpt2train",
            "name": "out/tokenize",
            "facets": {"jobType": facet("2-0-4", "JobTypeJobFacet", **kinds)},
        },
        "inputs": [dataset("shuffled"), dataset("tokenizer")],
        "outputs": [dataset("tokens") | {"outputFacets": {"outputStatistics": statistics}}],
    }


def test_openlineages_own_client_makes_the_same_events(corpus: Path) -> None:
    for event in events("out", {"out": corpus_facts(Folder(corpus))}):
        assert remade(event) == without_empty(event)
