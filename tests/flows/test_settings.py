"""Layers of settings: defaults < preset < file < flags; and sources other than URL lists, alone and together."""

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

import flows
import flows.recipe
import flows.sources
from flows.dataprep import dataprep
from flows.orchestration.flow import settings_flow
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.recipe import PlannedRun
from flows.settings import (
    DataprepSettings,
    PipelineSettings,
    PretrainFlowSettings,
    PretrainSettings,
    demo_layer,
    resolve,
)
from flows.sources import Sources, documents_of
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.flags import dump
from gpt2train.errors import UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tasks.core.forgotten import Forgotten, url_hash
from tasks.core.runner import Runner, step_name
from tasks.outputs.forget.training import find_runs, read_by, write_settings
from tests.flows.small_tokens import TRAIN, prepare_scored_data
from tests.tasks.corpus import Inline, rows_of
from tests.tasks.discover.site_files import serve, serve_crawl, urlset
from tests.tasks.web_server import running_site


def test_flags_win_over_the_file_which_wins_over_the_preset(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('preset = "117m"\n[train]\nsteps = 7\n[train.schedule]\nwarmup = 2\n[dedup]\nthreshold = 0.7\n')
    settings = resolve(PipelineSettings, str(config), {"urls": ["a.txt"], "dedup": {"threshold": 0.6}})
    assert settings.dedup.threshold == 0.6
    assert settings.train.steps == 7
    assert settings.train.model.layers == 12


def test_the_demo_preset_serves_every_flow() -> None:
    demo = demo_layer()
    assert resolve(DataprepSettings).blacklist.shard_rows == demo["blacklist"]["shard_rows"]
    whole = resolve(PipelineSettings)
    assert whole.download.allow_private == ("127.0.0.0/8",)
    for source in ("urls", "warcs", "documents"):
        given = resolve(PipelineSettings, flags={source: ["x"]})
        assert given.has_source and given.download.allow_private == ()
    assert whole.preset == demo["preset"]
    # `flows.pretrain --preset` of the demo's trains the same on the tokens of `flows.dataprep`.
    assert whole.tokenizer == resolve(DataprepSettings).tokenizer
    assert whole.train == resolve(PretrainSettings, flags={"preset": demo["preset"]}).train


def test_one_file_serves_all_flows_and_mistakes_in_it_are_found(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('urls = ["a.txt"]\npreset = "117m"\n[evaluate]\nmax_documents = 3\n')
    found = resolve(DataprepSettings, str(config))
    assert found.urls == ("a.txt",) and found.tokenizer.name == "gpt2"  # that of the preset
    assert resolve(DataprepSettings, flags={"urls": ["a.txt"]}).tokenizer.name == "train"
    assert resolve(PretrainSettings, str(config)).preset == "117m"
    config.write_text("[evalute]\nmax_documents = 3\n")
    with pytest.raises(UserError, match="unknown setting 'evalute'"):
        resolve(DataprepSettings, str(config))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"preset": "117m"}, ("gpt2", None)),
        ({"preset": "megatron-345m", "tokenizer": {"folder": "bpe"}}, ("gpt2", "bpe")),
        ({"preset": "117m", "tokenizer": {"name": "train"}}, ("train", 4096)),
        ({"preset": "117m", "tokenizer": {"vocab_size": 8000}}, ("train", 8000)),
        ({"preset": "117m", "tokenizer": {"name": "folder", "folder": "mine"}}, ("folder", "mine")),
        ({"preset": "cpm-gpt2"}, ("train", 30_000)),
        ({"preset": "t5-cpm"}, ("train", 30_191)),
        ({"preset": "tiny"}, ("train", 4096)),
        ({}, ("train", 4096)),
    ],
)
def test_a_preset_has_gpt_2_s_vocabulary_unless_another_is_chosen(
    flags: dict[str, Any], expected: tuple[str, Any]
) -> None:
    found = resolve(PipelineSettings, flags={"documents": ["a.txt"], **flags}).tokenizer
    assert (found.name, found.vocab_size if found.name == "train" else found.folder) == expected


def test_a_recipe_takes_the_place_of_a_preset() -> None:
    flags = {"recipe": "modern", "depth": 12, "train": {"seed": 7}}
    settings = resolve(PretrainSettings, flags=flags)
    assert settings.preset == "modern-12"
    assert settings.train == resolve(PretrainSettings, flags={"preset": "modern-12", "train": {"seed": 7}}).train
    small = resolve(PipelineSettings, flags={"documents": ["a.txt"], "recipe": "modern", "budget": "1e15"})
    assert (small.preset, small.train.model.layers, small.tokenizer.name) == ("modern-2", 2, "train")
    hours = resolve(PretrainSettings, flags={"recipe": "modern", "budget": "8h", "launch": {"processes": 1}})
    assert hours.train.model.family == "llama" and hours.train.steps > 1000
    with pytest.raises(UserError, match="leave one out"):
        resolve(PretrainSettings, flags={"preset": "345m", **flags})
    for found in (settings, small, hours):  # a command passes them to the flow, which resolves them again
        assert resolve(type(found), flags=dump(found, "json")) == found


def test_a_contradiction_in_the_file_is_blamed_on_it_whatever_flags_there_are(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[train]\nsteps = 20\n[train.schedule]\nwarmup = 50\n")
    for flags in ({}, {"train": {"logging": {"interval": 5}}}):
        with pytest.raises(UserError, match=f"^{file}: train: schedule.warmup 50 must be below steps 20"):
            resolve(PretrainSettings, str(file), flags)
    with pytest.raises(UserError, match=r"^settings: train: schedule.warmup 30 must be below steps 20"):
        resolve(PretrainSettings, str(file), {"train": {"schedule": {"warmup": 30}}})


@pytest.mark.slow
def test_the_deployment_for_gpt2_ends_when_the_goal_is_passed(tmp_path: Path) -> None:
    out, tasks = prepare_scored_data(tmp_path / "out"), tmp_path / "evaluation/commonsense_reasoning"
    tasks.mkdir(parents=True)
    rows = [{"query": f"Anna saw {n}", "choices": ["the harbour", "nobody"], "gold": n % 2} for n in range(6)]
    (tasks / "copa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "flows.pretrain", "--config", "pretrain/gpt2", "--output", str(out)]
    command += ["--budget", "1e13", "--train.device", "cpu", "--launch.processes", "1", "--train.steps", "3"]
    for name, value in (("batch.micro-batch", 2), ("batch.global-batch", 4), ("schedule.warmup", 1)):
        command += [f"--train.{name}", str(value)]
    for name in ("tasks", "train.validation.tasks"):
        command += [f"--{name}.data", str(tmp_path / "evaluation"), f"--{name}.partial"]
    command += ["--train.validation.interval", "2", "--train.validation.tasks.every", "1"]
    goal = ["--train.validation.stop-at.valid_task_core_centred", "-2"]
    done = subprocess.run([*command, *goal], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (out / "runs").glob("modern-2-*")
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    assert "finished at step 2 of 3: reached valid_task_core_centred" in (run / "logs/rank-0.log").read_text()
    assert json.loads((run / "eval/core.json").read_text())


def train(config: str | None = None, **flags: Any) -> Path:
    planned = pretrain.planned(resolve(PretrainFlowSettings, config, flags))
    planned.check()
    with Inline(workers=1) as runner:
        [trained] = planned.recipe(runner)
    return Path(planned.root.path(trained.folder))


@pytest.mark.slow
def test_a_training_goes_on_from_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = prepare_scored_data(tmp_path / "out")
    settings = {**TRAIN, "steps": 6, "device": "cpu", "checkpoints": {"interval": 2, "keep": 9}}
    run = train(data=str(out), output=str(out), train=settings, launch={"processes": 1})
    [found] = find_runs(Folder(out), None)
    assert found == run
    url = pq.read_table(out / "tokens/train/documents.parquet")["url"][0].as_py()
    reading = read_by(run, Forgotten(urls=(url_hash(url),)))
    assert reading.documents == 1
    reading = reading.model_copy(update={"checkpoint": "step-00000004", "steps": 1})
    path = write_settings(reading)
    assert path is not None
    shutil.move(out / "tokens", tmp_path / "before")
    shutil.copytree(tmp_path / "before", out / "tokens")
    with caplog.at_level(logging.INFO):
        other = train(str(path))
    assert other != run and list_checkpoints(run)
    assert newest_checkpoint(other).name == "step-00000002"
    assert [row["step"] for row in read_metrics(other) if "loss" in row] == [1, 2]
    assert str(run / "checkpoints/step-00000004") in (other / "config.toml").read_text()


def test_mistakes_are_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "x", "url": "y"}\n')
    (tmp_path / "b.docx").write_text("x")
    (tmp_path / "c.warc").write_text("http://a.example/\n")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for given, said in (
        ({"documents": [f"{tmp_path}/a.jsonl"]}, ["a.jsonl, row 1", "'body', 'url'", "--json-key"]),
        ({"documents": [f"{tmp_path}/none.jsonl"]}, ["none.jsonl", "No such file", "--documents"]),
        ({"documents": [f"{tmp_path}/*.parquet"]}, ["no file matches", "*.parquet", "--documents"]),
        ({"documents": [f"{tmp_path}/b.docx"]}, ["b.docx", ".jsonl", ".parquet", ".html", "rename"]),
        ({"documents": [f"{tmp_path}/empty"]}, ["no file in", "--documents"]),
        ({"warcs": [f"{tmp_path}/c.warc"]}, ["c.warc is not a WARC", "WARC/1.0", "--urls"]),
        ({"domains": ["http://a.example/page"]}, ["is no domain; expected a name as example.org"]),
        ({"warcs": [f"{tmp_path}/*.warc.gz"]}, ["no file matches", "--warcs"]),
        ({"warcs": [f"{tmp_path}/c.warc"], "documents": [f"{tmp_path}/a.jsonl"], "json_key": "body"}, ["c.warc"]),
    ):
        with pytest.raises(UserError) as error:
            dataprep.planned(resolve(DataprepSettings, flags={"output": str(out), **given})).check()
        assert "\n" not in str(error.value) and all(part in str(error.value) for part in said), error.value
    given = {"output": str(out), "documents": [f"{tmp_path}/*.jsonl"], "json_key": "body"}
    dataprep.planned(resolve(DataprepSettings, flags=given)).check()


DOWNLOAD = {"download": {"delay": 0, "allow_private": ["127.0.0.0/8"], "shared_rate_limit_dir": "off"}}
TEXT = "<html><body><article>" + "<p>It was a long way to the river, and nobody spoke on the road.</p>" * 30


@pytest.mark.slow
def test_domains_become_documents(tmp_path: Path) -> None:
    with running_site() as site:
        serve(site, "/sitemap.xml", urlset(["/1", "/2.pdf", "/private", "http://other.example.com/3"]))
        site.robots["wiki.example.org"] = (200, "User-agent: GPTBot\nDisallow: /private\n")
        for path in ("/", "/1", "/private"):
            serve(site, path, TEXT.encode(), "text/html")
        (tmp_path / "domains.txt").write_text("http://wiki.example.org\n")
        flags = {"domains": [f"{tmp_path}/domains.txt"], "connect_to": {"*.example.org": site.address}}
        settings = resolve(DataprepSettings, flags={"output": str(tmp_path / "out"), **flags, **DOWNLOAD})
        plan = dataprep.planned(settings).shown_plan()
        assert "1 domain, by sitemaps, feeds" in plan and "discover" in plan
        root = Folder(tmp_path / "out")
        runner = Inline(1)
        documents, steps = documents_of(root, settings, Sources(settings), runner)
        assert [step.step for step in steps] == ["discover", "blacklist", "download", "extract"]
        found = [(row["url"], row["source"]) for row in rows_of(root, documents)]
        assert found == [("http://wiki.example.org/1", "discover/wiki.example.org")]
        assert steps[1].outcome.reasons == {"forbidden_extension": 1}
        assert steps[2].outcome.reasons == {"robots_ai_agent": 1}
        again, _ = documents_of(root, settings, Sources(settings), runner)
        assert again.identity == documents.identity and {"discover", "download"} <= runner.skipped
        assert "cached" in dataprep.planned(settings).shown_plan()


@pytest.mark.exhaustive
def test_common_crawl_alone_needs_no_download(tmp_path: Path) -> None:
    with running_site() as site:
        urls = [f"http://wiki.example.org/{number}" for number in range(3)]
        serve_crawl(site, {url: TEXT.replace("river", f"river {url}").encode() for url in urls})
        flags = {
            "output": str(tmp_path / "out"),
            "domains": ["wiki.example.org"],
            "connect_to": {"*.example.net": site.address},
            **DOWNLOAD,
            "discover": {
                "methods": ["commoncrawl"],
                "index_server": "http://index.example.net",
                "archive_server": "http://data.example.net",
            },
        }
        settings = resolve(DataprepSettings, flags=flags)
        assert "by commoncrawl" in dataprep.planned(settings).shown_plan()
        root = Folder(tmp_path / "out")
        documents, steps = documents_of(root, settings, Sources(settings), Inline(1))
        assert [step.step for step in steps] == ["discover", "commoncrawl", "extract"]
        found = [(row["url"], row["source"]) for row in rows_of(root, documents)]
        assert found == [(url, "commoncrawl/CC-MAIN-2024-10") for url in urls]
        assert {host for host, _ in site.hits} == {"index.example.net", "data.example.net"}


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
