"""A flow has one recipe: a dry run shows the steps of a run, and inputs are read once."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flows
import flows.recipe
import flows.sources
from flows.dataprep import dataprep
from flows.orchestration.flow import settings_flow
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.recipe import PlannedRun
from flows.settings import DataprepSettings, PipelineSettings, PretrainFlowSettings, resolve
from flows.ui.artifact_publisher import ArtifactPublisher
from gpt2train.store.manifest import Manifest
from tasks.core.runner import Runner, step_name
from tests.tasks.corpus import Inline

SMALL: dict[str, Any] = {
    "clean": {"min_tokens": 0, "language": {"keep": ["any"]}},
    "tokenizer": {"name": "train", "vocab_size": 300},
}


STORY = (
    "Page {0} is about {0} ships, {0} storms and {0} islands that no other page of the site mentions at all. "
    "For all of these pages the editors thank their readers in every harbour.\n\nCopyright of the whole site"
)


class Recording(Inline):
    def __init__(self) -> None:
        super().__init__(1)
        self.names: list[str] = []

    def run_step(self, function: Callable[..., Manifest], *arguments: Any, **options: Any) -> Manifest:
        self.names.append(step_name(function))
        return super().run_step(function, *arguments, **options)


def test_a_dry_run_shows_the_steps_of_the_run(tmp_path: Path) -> None:
    for number in range(10):
        text = f"The quick brown fox number {number} jumps over {number} lazy dogs. " * 4
        (tmp_path / f"{number}.txt").write_text(text)
    given = {"documents": [f"{tmp_path}/*.txt"], "output": str(tmp_path / "out"), **SMALL}
    run = dataprep.planned(resolve(DataprepSettings, flags=given))
    before = run.cached_steps()
    assert not (tmp_path / "out").exists()
    with Recording() as runner:
        data, page = run.recipe(runner)
    assert [name for name, _ in before] == runner.names and runner.names[-1] == "report"
    assert all(manifest is None for _, manifest in before)
    assert [manifest for _, manifest in run.cached_steps()] == [*data.manifests, page]
    whole = pipeline.planned(resolve(PipelineSettings, flags=given)).cached_steps()
    # The report of the pipeline lies in another folder, and is about more.
    assert [name for name, done in whole if done is None] == ["train", "merge", "evaluate", "report"]
    training = pretrain.planned(resolve(PretrainFlowSettings, flags={"output": str(tmp_path / "none")}))
    assert training.cached_steps() == [("train", None)] and not (tmp_path / "none").exists()


def test_opt_in_steps_run_at_their_place(tmp_path: Path) -> None:
    lines = [{"url": f"http://a.example/{number}", "text": STORY.format(number)} for number in range(20)]
    (tmp_path / "pages.jsonl").write_text("\n".join(map(json.dumps, lines)))
    given = {"documents": [f"{tmp_path}/pages.jsonl"], "output": str(tmp_path / "out"), **SMALL}
    off = [name for name, _ in dataprep.planned(resolve(DataprepSettings, flags=given)).cached_steps()]
    given |= {"boilerplate": {"enabled": True}, "substrings": {"enabled": True, "min_words": 8}}
    run = dataprep.planned(resolve(DataprepSettings, flags=given))
    with Recording() as runner:
        data, _ = run.recipe(runner)
    assert [name for name in runner.names if name not in ("boilerplate", "substrings")] == off
    assert runner.names.index("boilerplate") + 1 == runner.names.index("clean")
    assert runner.names.index("dedup") + 1 == runner.names.index("substrings") == runner.names.index("shuffle") - 1
    assert [name for name, _ in run.cached_steps()] == runner.names
    done = {manifest.step: manifest.outcome for manifest in data.manifests}
    assert done["boilerplate"].facts["lines_removed"] == 20 and done["substrings"].facts["spans_removed"] == 19
    page = (tmp_path / "out/data-report/report.html").read_text()
    assert "Boilerplate lines removed" in page and "Copyright of the whole site" in page


def test_input_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a command finds and counts them; the flow takes them over, and the page of the plan too."""
    found: list[str] = []
    finder, counter = flows.sources.find_url_lists, flows.sources.read_urls
    monkeypatch.setattr(flows.sources, "find_url_lists", lambda urls: (found.append("found"), finder(urls))[1])
    monkeypatch.setattr(flows.sources, "read_urls", lambda place: (found.append("counted"), counter(place))[1])
    (tmp_path / "urls.txt").write_text("http://a.example/1\n")
    run = pipeline.planned(
        resolve(PipelineSettings, flags={"urls": [str(tmp_path / "urls.txt")], "output": str(tmp_path / "out")})
    )
    estimate = flows.recipe.estimate_run
    monkeypatch.setattr(flows.recipe, "estimate_run", lambda *given: (found.append("estimated"), estimate(*given))[1])
    run.check()
    run.plan_page()
    run.cached_steps()
    assert sorted(found) == ["counted", "estimated", "found"]


def test_what_workers_import_early_works() -> None:
    """A worker passes over what fails, and would be slow without a word."""
    from flows.worker_imports import FUNCTIONS, MODULES

    assert [name for name in MODULES if name not in sys.modules] == []
    for load in FUNCTIONS:
        load()


class Probe(PlannedRun[DataprepSettings]):
    """A flow of no steps, which notes the runs that it checks and does."""

    name, model, result_name = "probe", DataprepSettings, "end"
    has_plan = False
    checked: ClassVar[list[PlannedRun[Any]]] = []
    done: ClassVar[list[PlannedRun[Any]]] = []

    def check(self) -> None:
        self.checked.append(self)

    def recipe(self, runner: Runner) -> None:
        self.done.append(self)

    def conclude(self, made: None, publisher: ArtifactPublisher) -> str:
        return self.settings.output


def test_a_command_hands_its_run_to_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are resolved and checked before a server starts; the flow does neither again."""
    probe = settings_flow(Probe)
    # Without Prefect's engine: the function of the flow, called as the engine calls it.
    monkeypatch.setattr(type(probe), "__call__", lambda self, **parameters: self.fn(**parameters))
    settings = resolve(DataprepSettings, flags={"output": str(tmp_path), "connect_to": {"a.test": "127.0.0.1:80"}})
    run = probe.planned(settings)
    assert probe.start(run) == str(tmp_path) and Probe.done == [run] and Probe.done[0] is run and Probe.checked == []
    # Another run, as of a deployment in the same process, resolves and checks its own parameters.
    other = str(tmp_path / "other")
    assert probe.fn(output=other) == other and Probe.checked == Probe.done[1:]
    assert [one.settings.output for one in Probe.checked] == [other]
    assert Probe.checked[0].settings == resolve(DataprepSettings, flags={"output": other})
