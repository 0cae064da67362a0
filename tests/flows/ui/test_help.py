"""The help pages of the flow commands: a page of the usual settings, and all of them grouped by step."""

import re
import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from flows.command import app_of
from flows.dataprep import dataprep
from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.orchestration.flow import SettingsFlow
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.ui.help import STEPS, USUAL
from gpt2train.command_line import run_command
from gpt2train.settings import Settings

FLOWS: dict[str, SettingsFlow[Any]] = {flow.name: flow for flow in (dataprep, evaluate, finetune, pipeline, pretrain)}
SETTINGS: dict[str, type[Settings]] = {name: flow.model for name, flow in FLOWS.items()}


def page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str, width: int = 80) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    flow, *flags = words
    app = app_of(FLOWS[flow])  # a new one, whose console has this width
    assert run_command(app, flags) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def flags_of(model: type[BaseModel], prefix: str = "--") -> set[str]:
    """Every flag of a settings model."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        flag = prefix + name.replace("_", "-")
        optional = type(None) in get_args(field.annotation)
        kinds: list[Any] = [field.annotation, *(get_args(field.annotation) if optional else ())]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if inner:
            found |= flags_of(inner[0], f"{flag}.")
        else:
            found.add(flag)
    return found


@pytest.mark.parametrize("flow", SETTINGS)
def test_the_page_of_usual_settings_fits_a_screen(
    flow: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = page(capsys, monkeypatch, flow, "--help")
    assert said.startswith(f"Usage: python -m flows.{flow} [OPTIONS]\n")
    assert len(said.splitlines()) <= 60 and "--help-all" in said
    assert "TOML file of settings" in said and "Show the steps that would run" in " ".join(said.split())
    shown = re.findall(r"^│ (--[a-z.-]+)", said, re.M)
    usual = [f"--{name}".replace("_", "-") for name in USUAL]
    assert shown == [flag for flag in usual if flag == "--config" or flag in flags_of(SETTINGS[flow])]


@pytest.mark.parametrize("flow", SETTINGS)
def test_the_page_of_all_settings_has_each_under_its_step(
    flow: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = page(capsys, monkeypatch, flow, "--help-all", width=200)
    headings = re.findall(r"^╭─ ([a-zA-Z_. ]+) ─", said, re.M)
    assert headings[0] == "Run and sources"
    steps = [step for step in STEPS if step in SETTINGS[flow].model_fields]
    assert list(dict.fromkeys(heading.partition(".")[0] for heading in headings[1:])) == steps
    # Long names are broken over lines, so they are asked for instead.
    app = app_of(FLOWS[flow])
    app.shows_all = True
    under = {one.name: one.parameter.group[0].name for one in app.assemble_argument_collection() if one.show}
    wanted = flags_of(SETTINGS[flow])
    assert wanted | {"--config"} == under.keys()
    for flag in wanted:
        step = flag[2:].partition(".")[0].replace("-", "_")
        assert under[flag].partition(".")[0] == (step if step in STEPS else "Run and sources")


def test_the_effective_defaults_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The preset decides about the training: tiny has 4 layers, the model's own default is 12."""
    said = page(capsys, monkeypatch, "pipeline", "--help-all", width=200)
    assert "[default: 0.8]" in next(line for line in said.splitlines() if "--dedup.threshold" in line)
    training = said[said.index("╭─ train ─") : said.index("╭─ launch ─")]
    assert "default:" not in training and "comes from the preset" in training


@pytest.mark.parametrize("typed", ["python -m flows.evaluate", "gpt2train flow evaluate"])
def test_the_help_names_the_command(typed: str) -> None:
    """As the shell starts it, where the module is `__main__`."""
    words = ["-m", *typed.removeprefix("python -m ").split(), "-h"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: {typed} [OPTIONS]\n")
    assert "__main__" not in done.stdout
