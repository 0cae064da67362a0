"""The settings reference of the site: complete, in agreement with the commands, and the same on every machine."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from flows.command import app_of
from flows.dataprep import dataprep
from flows.evaluate import evaluate
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from gpt2train.cli import app
from gpt2train.config import Corpus, RampUp, RunConfig
from gpt2train.evaluate.tasks.description import Task
from gpt2train.inference.settings import ServingLayout
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.search import GivenLayout
from gpt2train.plan.simulate_command import SimulatedLayout
from gpt2train.settings import Settings

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "docs/hooks"
# Options that are no field of a settings model, by command.
NOT_SETTINGS = {
    "flow": "config help-all",
    "serve": "model device trace",
    "generate": "model prompt device dtype trace json",
    "plan": "recipe depth budget cores preset config vocab precision global-batch tokens rows simulate",
    "simulate": "preset config vocab precision global-batch dp rank all-kinds json",
}
# Models without "Settings" in their name that a user sets too.
MORE = {Corpus, RampUp, RunConfig, ServingLayout, Hardware, GivenLayout, SimulatedLayout, Task}
# Base classes, of which the reference shows the models that inherit from them.
COMPOSED = (
    *("Settings", "LayeredSettings", "OutputSettings", "MergeAndScoreSettings", "PretrainSettings"),
    *("PipelineSettings", "TuningSettings", "CommonLaunchSettings"),
)


@pytest.fixture(scope="module")
def reference() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOOKS))
        import settings_reference  # type: ignore[import-not-found]

        return settings_reference


@pytest.fixture(scope="module")
def pages(reference: Any) -> dict[str, str]:
    return {name: reference.page(name) for name in reference.PAGES}


def options(program: Any, command: str, tables: bool = False) -> set[str]:
    """The options of a command that set a value, without the negative ones; with `tables` those of whole tables too."""
    found = program.assemble_argument_collection()
    names = {argument.name for argument in found if tables or not argument.children}
    others = {f"--{name}" for name in ("help", "version", *NOT_SETTINGS[command].split())}
    return {name for name in names if name.startswith("--")} - others


def flags(text: str) -> set[str]:
    return set(re.findall(r"^`(--[\w.-]+)` · ", text, re.M))


def test_the_page_of_a_flow_describes_exactly_its_options(pages: dict[str, str]) -> None:
    described = {
        "dataprep": flags(pages["data/settings.md"]),
        "pretrain": flags(pages["train/settings.md"].split("\n## Run file")[0]),
        "evaluate": flags(pages["operate/settings.md"].split("\n## WikiText")[0]),
    }
    for flow in (dataprep, pretrain, evaluate):
        program = app_of(flow)
        assert options(program, "flow") <= described[flow.name] <= options(program, "flow", tables=True), flow.name
    assert options(app_of(pipeline), "flow") <= set.union(*described.values())


def test_every_option_of_the_other_commands_is_described(pages: dict[str, str]) -> None:
    parts = {
        title: flags(text)
        for page in pages.values()
        for title, text in re.findall(r"^## ([A-Z][^\n]*)\n(.*?)(?=^## [A-Z]|\Z)", page, re.M | re.S)
    }
    processes = parts["Processes"]
    assert parts["Server"] | processes == options(app["serve"], "serve")
    assert parts["Sampling"] | parts["Beam search"] | processes == options(app["generate"], "generate")
    assert parts["Layout of a plan"] | parts["Hardware of a plan"] == options(app["plan"], "plan")
    assert parts["Layout of a simulation"] | parts["Hardware of a plan"] == options(app["simulate"], "simulate")


def test_every_field_of_every_model_is_described(reference: Any, pages: dict[str, str]) -> None:
    def below(model: type[Settings]) -> set[type[Settings]]:
        return {model}.union(*(below(inner) for inner in model.__subclasses__()))

    expected = MORE | {model for model in below(Settings) if model.__name__.endswith("Settings")}
    ours = {model for model in expected if model.__module__.split(".")[0] in ("flows", "tasks", "gpt2train")}
    parts = [(name, part) for name, parts in reference.PAGES.items() for part in parts]
    shown = [(name, part, group) for name, part in parts for group in reference.groups(part)]
    assert {model.__name__ for model in ours - {group.model for *_, group in shown}} == {*COMPOSED}
    for name, part, group in shown:
        for field, info in group.model.model_fields.items():
            if part.without and not group.path and field in part.without.model_fields:
                continue
            path = (*group.path, field)
            heading = f"{{ #{reference.anchor(part, path)} }}\n"
            assert heading in pages[name], f"{group.model.__name__}.{field}"
            assert info.description
            first = " ".join(info.description.split())[:30]
            holds_fields = f"## {'.'.join(path)} {heading}" in pages[name]
            assert holds_fields or first in " ".join(pages[name].split(heading)[1].split()), (
                f"{group.model.__name__}.{field}"
            )


def test_type_bounds_and_default_are_shown(pages: dict[str, str]) -> None:
    data, train = pages["data/settings.md"], pages["train/settings.md"]
    assert "`--dedup.threshold` · number, above 0, at most 1 · default `0.8`\n" in data
    assert '`--runner` · one of `"local"`, `"ray"`, `"dask"` · default `"local"`\n' in data
    assert "`--train.batch.ramp-up` · table or not set · default: not set\n" in train
    assert "`--train.batch.ramp-up.start` · integer, from 1 to 2147483647 · required\n" in train
    assert (
        "### `train.mixture.corpora.prefix` { #train.mixture.corpora.prefix }\n\nstring, not empty · required\n"
        in train
    )
    assert "`--evals` · table of (string, not empty) · default `{}`\n" in train
    assert "| `model.layers` | 12 | 24 | 36 | 4 | 48 | 12 | 2 | 24 | 12 | 24 | 3 | 12 | 16 | 24 | 24 | 4 |\n" in train


def test_no_default_depends_on_this_machine(pages: dict[str, str]) -> None:
    cores = "default: Number of CPU cores that this process may use"
    assert all(cores in pages[name] for name in ("data/settings.md", "train/settings.md", "operate/settings.md"))
    for text in pages.values():
        for place in (ROOT, Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix), Path.cwd()):
            assert str(place) not in text
        assert not re.search(r'default `"/', text)


@pytest.mark.exhaustive
def test_the_pages_are_the_same_in_another_process(pages: dict[str, str], tmp_path: Path) -> None:
    program = "import settings_reference as r, sys; sys.stdout.write(''.join(map(r.page, r.PAGES)))"
    path = os.pathsep.join([str(ROOT), str(HOOKS)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "".join(pages.values()), done.stderr
