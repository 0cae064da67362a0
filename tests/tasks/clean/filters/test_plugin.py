"""The plug-in of docs/develop/add-a-filter.md, as an installed distribution."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError, UserError
from gpt2train.settings import Settings
from gpt2train.store.manifest import Folder
from tasks.clean.filters import filter_chain
from tasks.clean.filters.filter_chain import FilterSettings
from tasks.clean.filters.registry import TextFilter, filters, register_filter
from tests.tasks.corpus import extracted
from tests.tasks.plugin_page import files_of, install, run

PAGE = "add-a-filter.md"
PROSE = "The library waits for the reply of the server, and gives up when the reply does not come in time. "
LINKS = PROSE * 10 + "https://a.example/page " * 30

CLEANS = """
import json, os, sys
from gpt2train.settings import build
from tasks.clean.settings import CleanSettings
from tasks.clean.step import clean
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from gpt2train.store.manifest import read_manifest
from gpt2train.store.folder import Folder

root = Folder(sys.argv[1])
with Runner(workers=2) as runner:
    manifest = clean(root, read_manifest(root / "documents"), build(CleanSettings, json.loads(sys.argv[2])), runner)
    rows = [row for file in manifest.outcome.rejected for row in read_rows(root / "clean", file.name)]
    rejected = [(row["id"], row["reason"], row["detail"]) for row in rows]
print(json.dumps([manifest.model_dump(mode="json"), rejected, sorted(runner.skipped)]), flush=True)
os._exit(0)  # pyarrow's threads can outlive a program as short as this one and abort its teardown
"""

VERIFIES = """
import os, sys
from tasks.outputs.verify.command import verify_output

verify_output(sys.argv[1], step=("clean",))
sys.stdout.flush()
os._exit(0)
"""


def clean(root: Folder, settings: dict[str, Any], plugins: Path | None) -> tuple[dict[str, Any], list[Any], list[str]]:
    """Clean the documents in a process of its own: the manifest, the rejected rows, the cached steps."""
    done = run(CLEANS, root.url, json.dumps(settings), plugins=plugins)
    assert done.returncode == 0, done.stderr
    manifest, rejected, cached = json.loads(done.stdout)
    return manifest, rejected, cached


@pytest.mark.slow
def test_the_filter_of_the_page_cleans_in_worker_processes(tmp_path: Path) -> None:
    root, plugins = Folder(tmp_path / "out"), tmp_path / "plugins"
    texts = {"prose": PROSE * 10, "links": LINKS}
    extracted(root, [{"id": name, "url": "u", "text": text} for name, text in texts.items()])
    install(PAGE, plugins)

    before, rejected, _ = clean(root, {}, None)
    assert rejected == []
    assert clean(root, {}, plugins) == (before, [], ["clean"])  # installed, but off: nothing changes

    settings = tomllib.loads(files_of(PAGE)["run.toml"])["clean"]
    after, rejected, cached = clean(root, settings, plugins)
    assert (rejected, cached) == ([["links", "links_many", "0.130, at most 0.05 expected"]], [])
    assert after["outcome"]["reasons"] == {"links_many": 1}
    assert after["parameters"]["filters"]["links"] == {"enabled": True, "max_share": 0.05}
    assert after["versions"] == {**before["versions"], "gpt2train-links": "1.0"}
    assert clean(root, settings, plugins)[2] == ["clean"]
    verified = run(VERIFIES, root.url, plugins=plugins)
    assert (verified.returncode, "clean" in verified.stdout) == (0, True), verified.stdout + verified.stderr
    unknown = run(VERIFIES, root.url, plugins=None)
    assert "not done again: its setting filters.links is unknown or wrong here; is its plug-in" in unknown.stdout

    install(PAGE, plugins, version="1.1")
    upgraded, _, cached = clean(root, settings, plugins)
    assert cached == [] and upgraded["fingerprint"] != after["fingerprint"]


@pytest.mark.exhaustive
def test_help_and_errors_name_its_settings(tmp_path: Path) -> None:
    install(PAGE, tmp_path)
    code = "import runpy, sys; sys.argv = ['', '--help-all']; runpy.run_module('flows.dataprep', run_name='__main__')"
    assert "--clean.filters.links.max-share" in run(code, plugins=tmp_path).stdout
    code = "from gpt2train.settings import build; from tasks.clean.settings import CleanSettings; "
    code += "build(CleanSettings, {'filters': {'links': {'max_share': 2}}})"
    assert "filters.links.max_share: input should be less than or equal to 1" in run(code, plugins=tmp_path).stderr
    assert "unknown setting 'filters.links'" in run(code).stderr


def test_the_chain_without_plug_ins_is_in_the_order_of_fineweb() -> None:
    classifiers = ["quality", "fasttext", "fineweb_edu"]
    assert list(filters()) == ["cleanup", "repetition", "gopher", "c4", "fineweb", *classifiers, "pii"]
    assert list(FilterSettings.model_fields) == list(filters())


class OnSettings(Settings):
    enabled: bool = True


class OffSettings(Settings):
    enabled: bool = False


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Links", OffSettings, "lower-case"),
        ("links", OnSettings, "not off by default"),
        ("links", Settings, "not off by default"),
        ("links", OffSettings, "must not import them"),
    ],
)
def test_a_wrong_registration_is_refused(name: str, settings: type[Settings], message: str) -> None:
    with pytest.raises(UserError, match=message):
        register_filter(name, TextFilter(settings, lambda text, settings: None, order=1))


def test_another_result_than_a_verdict_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps = TextFilter(OffSettings, lambda text, settings: True, order=1)  # as a filter of datatrove
    monkeypatch.setattr(filter_chain, "_enabled", lambda settings: [("links", keeps, OffSettings())])
    with pytest.raises(RunError, match="text filter links returned bool; return a Rejection, a Replacement or None"):
        filter_chain.apply("text", None, FilterSettings())
