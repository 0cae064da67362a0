"""Record of what a refactoring must not change: the steps of three runs, the settings, the help pages.

`python -m tests.recorded` names each item that differs from `tests/data/recorded.json`; with `--write` it records them
anew. A step's item is a hash of its name, version and parameters, and of the names of its inputs and packages: the
content of inputs and the versions of packages differ between machines.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cyclopts import App
from rich.console import Console

from flows.command import app_of
from flows.dataprep import dataprep
from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.orchestration.flow import SettingsFlow
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.settings import resolve
from gpt2train.cli import app as gpt2train_app
from gpt2train.store.folder import FileRecord
from gpt2train.store.manifest import Manifest, Outcome, digest
from tasks.core.dry_runner import DryRunner
from tasks.core.step import Step
from tests.tasks.plugin_page import ROOT, install
from tests.tasks.sources.archives import archive, members, numbered, response

RECORD = Path(__file__).parent / "data/recorded.json"
FLOWS: dict[str, SettingsFlow[Any]] = {flow.name: flow for flow in (dataprep, evaluate, finetune, pipeline, pretrain)}
# Any source, each step that is off by default, a filter and a data step of a plug-in.
ALL_SOURCES: dict[str, Any] = {
    "urls": ["urls.txt"],
    "domains": ["a.example"],
    "warcs": ["pages.warc.gz"],
    "documents": ["page.html", "text.txt"],
    "boilerplate": {"enabled": True},
    "clean": {"filters": {"gopher": {"enabled": True}, "links": {"enabled": True}}},
    "substrings": {"enabled": True},
    "preset": "117m",
}
CHINESE: dict[str, Any] = {
    "documents": ["text.txt"],
    "clean": {"language": {"keep": ["zh"]}, "min_tokens": 32},
    "output": "zh",
}
NO_TEMPLATE = {"tokenize": {"prepend_bos": False}}  # which would be looked up in a tokenizer that is not there
RUNS = {"demo": {}, "Chinese": CHINESE, "all sources": ALL_SOURCES}
WITH_PLUGINS = ("all sources",)


class _Recorder(DryRunner):
    """A dry runner that goes on behind the tokenizer, and keeps each step that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Step] = []

    def finished(self, step: Step) -> Manifest | None:
        self.found.append(step)
        return super().finished(step)

    def _placeholder(self, name: str, folder: str | None = None) -> Manifest:
        made = super()._placeholder(name, folder)
        if name != "tokenizer":
            return made
        file = FileRecord(name="tokenizer.json", bytes=0, sha256="")
        return made.model_copy(update={"outcome": Outcome(outputs=(file,))})


def steps(name: str) -> Iterator[tuple[str, str]]:
    run = pipeline.planned(resolve(pipeline.model, flags=RUNS[name] | NO_TEMPLATE))
    runner = _Recorder()
    run.recipe(runner)
    assert [step.name for step in runner.found] == [step for step, _ in runner.steps]
    for step in runner.found:
        work = [step.name, step.version, step.parameters, sorted(step.inputs), sorted(step.versions), step.row_input]
        places = [step.folder.url.removeprefix(step.root.url), step.records.url.removeprefix(step.root.url)]
        yield f"step {step.name} of {name}", f"version {step.version}, {digest([work, places])}"


def inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a JSON schema with what it refers to in its place, and without titles and descriptions."""
    if isinstance(schema, list):
        return [inlined(item, definitions) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].rpartition("/")[2]], **schema}
    words = ("$ref", "title", "description")
    return {
        key: {name: inlined(one, definitions) for name, one in value.items()}
        if key == "properties"
        else inlined(value, definitions)
        for key, value in schema.items()
        if key not in words
    }


def settings() -> Iterator[tuple[str, str]]:
    for name, flow in FLOWS.items():
        schema = flow.model.model_json_schema()
        definitions = schema.pop("$defs", {})
        for setting, value in inlined(schema, definitions)["properties"].items():
            yield f"setting {setting} of {name}", digest(value)


def help_page(app: App, *words: str) -> str:
    """Return the hash of the words of a help page, without the frames and breaks of its lines."""
    page = io.StringIO()
    app([*words], console=Console(file=page, width=4000), result_action="return_value")
    plain = re.sub(r"[\s─│╭╮╰╯]+", " ", page.getvalue())
    plain = re.sub(r"(--workers .*?\[default: )\d+", r"\1cores", plain)  # of this machine
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def help_pages() -> Iterator[tuple[str, str]]:
    def pages(app: App, *path: str) -> Iterator[tuple[str, str]]:
        yield f"help of {' '.join(['gpt2train', *path])}", help_page(gpt2train_app, *path, "--help")
        for name in app:
            if not name.startswith("-") and path != ("flow",):  # whose pages are those of `FLOWS`
                yield from pages(app[name], *path, name)

    yield from pages(gpt2train_app)
    for name, flow in FLOWS.items():
        app = app_of(flow)
        yield f"help of flows.{name}", help_page(app, "--help")
        if name in ("finetune", "pipeline"):  # which have the settings of the others
            yield f"help of flows.{name} --help-all", help_page(app, "--help-all")


def prepare(folder: Path) -> None:
    (folder / "urls.txt").write_text("http://b.example/1\n")
    (folder / "text.txt").write_text("却说玄德在店中，忽听得门外有人说话。\n", encoding="utf-8")
    (folder / "page.html").write_text("<html><body><p>One paragraph of some words.</p></body></html>")
    archive(folder, members([response(1, numbered(1))]), "pages.warc.gz")


def items(runs: Iterable[str]) -> dict[str, str]:
    """Return the steps of these runs, with all settings and help pages unless there are plug-ins."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare(Path(folder))
        for name in runs:
            found |= dict(steps(name))
    return found if set(runs) & {*WITH_PLUGINS} else found | dict(settings()) | dict(help_pages())


def items_with_plugins() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        for page in ("add-a-filter.md", "add-a-data-step.md"):
            install(page, Path(folder))
        path = os.pathsep.join([folder, str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tests.recorded", "--with-plugins"]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def differences(found: Mapping[str, str]) -> list[str]:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    names = [name for name in {**recorded, **found} if recorded.get(name) != found.get(name)]
    return [f"{name}: {recorded.get(name, 'none')} -> {found.get(name, 'none')}" for name in names]


def main() -> None:
    if "--with-plugins" in sys.argv:
        print(json.dumps(items(WITH_PLUGINS)))
        return
    found = items([name for name in RUNS if name not in WITH_PLUGINS]) | items_with_plugins()
    changed = differences(found) if RECORD.exists() else []
    print("\n".join(changed) or f"{len(found)} items, as recorded")
    if "--write" in sys.argv:
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    elif changed:
        sys.exit("these items differ; if that is meant: python -m tests.recorded --write")


if __name__ == "__main__":
    main()
