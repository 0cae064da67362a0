"""Flags of a command, checked with the preset and the file that they change, and its help pages."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from flows.command import app_of
from flows.dataprep import dataprep
from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.orchestration.flow import SettingsFlow
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.settings import DataprepSettings, EvaluateFlowSettings, PipelineSettings, PretrainFlowSettings, resolve
from flows.ui.flags import dump, flags_model
from flows.ui.help import STEPS, USUAL
from gpt2train.command_line import run_command
from gpt2train.config import TrainSettings, preset
from gpt2train.settings import Settings, build, described
from tests.flows.commands import APPS, run
from tests.flows.small_tokens import prepare_tokens

MODELS = (DataprepSettings, EvaluateFlowSettings, PipelineSettings, PretrainFlowSettings)


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_tokens(tmp_path / "out")


# Settings that are off are left out of a dump; a flag may take back what the preset sets.
TAKEN_BACK = (
    "--preset colossalai-gpt2-small --train.epochs 0 --train.steps 7 --launch.processes 1 --train.model.layers 1 "
    "--train.model.heads 1 --train.model.hidden 8 --train.model.context 16"
)


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("--train.steps 60", "in 60 steps"),  # below the warm-up of the default, above that of the preset
        ("--train.model.hidden 256", "layout"),  # 12 heads do not divide it, those of the preset do
        ("--train.model.max-positions 512", "layout"),  # below the context of the default
        ("--train.parallel.zero 1", "layout"),  # text for a number of a Literal
        ("--config mine.toml --train.parallel.offload-placement auto", "layout"),  # the file says cpu_offload
        (TAKEN_BACK, "in 7 steps"),
    ],
)
def test_a_flag_that_suits_the_preset_or_the_file_is_taken(
    flags: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.toml").write_text("[train.parallel]\ncpu_offload = true\n")
    assert run("pretrain", *flags.split(), "--dry-run") == 0
    assert shown in capsys.readouterr().out


def test_an_option_on_a_preset_changes_nothing_else() -> None:
    given = (("t5-cpm", "model", "head_dim", 8), ("modern-12", "model", "kv_heads", 3))
    for chosen, flag, name, value in (*given, ("t5-cpm", "objective", "mean_span", 4.0)):
        words = ["--preset", chosen, f"--train.{flag}.options.{name}", str(value)]
        _, bound, _ = APPS["pretrain"].parse_args(words, exit_on_error=False, print_error=False)
        found = resolve(PretrainFlowSettings, None, dump(bound.arguments["settings"], "python", given=True)).train
        assert found == build(TrainSettings, preset(chosen), {flag: {"options": {name: value}}})


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--train.steps 20", "schedule.warmup 45 must be below steps 20"),
        ("--train.parallel.offload-placement auto", "offload_placement 'auto' needs cpu_offload = true"),
        ("--data x --tokens y", "error: --tokens and --data both name the tokens"),
        ("--train.parallel.zero 4", "error: --train.parallel.zero: input should be 0, 1, 2 or 3 (got 4)"),
        ("--train.steps many", "error: --train.steps: input should be a valid integer"),
        ("--train.model", "--train.model is a group of settings"),
        ("--train.model gpt2", "--train.model is a group of settings; set one of them: --train.model.family, "),
        ("--train.lr 1", "unknown option --train.lr; did you mean --train.optimizer.lr?"),
        ("--train.seq-length 1", "Megatron-LM's --seq-length is --train.model.context here"),
        ("--train.batch.size 1", "--train.batch has .global-batch, .gradient-accumulation-steps, .micro-batch"),
        ("--train.checkpoints.every 1", "did you mean --train.checkpoints."),
        ("--train.model.layers 0", "error: --train.model.layers: input should be greater than or equal to 1"),
        ("--tokens 0.3 a 0.7 b", "error: no option takes 'a'; quote a value with spaces, --help lists the options\n"),
    ],
)
def test_a_flag_that_does_not_is_refused(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pretrain", *flags.split(), "--dry-run") == 2
    assert message in capsys.readouterr().err


def test_a_list_takes_the_words_that_a_shell_makes_of_a_glob() -> None:
    words = "--documents a.jsonl b.jsonl --warcs x.warc --documents c.jsonl --limits.texts 0.1 --verify"
    _, bound, _ = APPS["dataprep"].parse_args(words.split(), exit_on_error=False, print_error=False)
    found = dump(bound.arguments["settings"], "python", given=True)
    assert found["documents"] == ("a.jsonl", "b.jsonl", "c.jsonl")
    assert found["warcs"] == ("x.warc",) and found["verify"]
    assert run("dataprep", "--documents", "--verify") == 2


def test_the_dump_of_settings_gives_the_same_settings() -> None:
    flags = {"preset": "colossalai-gpt2-small", "train": {"epochs": 0, "parallel": {"offload_placement": "all"}}}
    settings = resolve(PretrainFlowSettings, flags=flags)
    assert settings.train.epochs == 0
    assert resolve(PretrainFlowSettings, flags=dump(settings, "json")) == settings


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_flags_have_the_fields_and_defaults_of_the_settings(model: type) -> None:
    given = {"run": "r"} if model is EvaluateFlowSettings else {}
    made = flags_model(model)
    assert made(**given).model_dump() == model(**given).model_dump()
    texts = {name: field.description for name, field in described(model).model_fields.items()}
    assert all(texts.values())
    assert {name: field.description for name, field in described(made).model_fields.items()} == texts


@given(st.integers(-10, 10), st.integers(-10, 10))
def test_one_value_is_checked_as_in_the_settings(layers: int, heads: int) -> None:
    def refused(model: type[BaseModel]) -> list[Any]:
        try:
            model.model_validate({"train": {"model": {"layers": layers, "heads": heads, "hidden": 7 * 720}}})
        except ValidationError as error:
            return [one["loc"] for one in error.errors()]
        return []

    assert refused(PretrainFlowSettings) == refused(flags_model(PretrainFlowSettings))


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
    found: set[str] = set()
    for name, field in model.model_fields.items():
        flag, parts = prefix + name.replace("_", "-"), get_args(field.annotation)
        kinds: list[Any] = [field.annotation, *(parts if type(None) in parts else ())]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        found |= flags_of(inner[0], f"{flag}.") if inner else {flag}
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
