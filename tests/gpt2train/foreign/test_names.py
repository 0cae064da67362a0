"""The table of other systems' names: what it names exists, and an unknown option gets what takes its place."""

import difflib
import random
from pathlib import Path
from typing import Any, get_args

import pytest
from cyclopts import App
from pydantic import BaseModel

from gpt2train import train
from gpt2train.cli import app, run_command
from gpt2train.config import RunConfig
from gpt2train.config.foreign_values import CONVERSIONS
from gpt2train.foreign.table import SIMILAR, System, closest, hint, known, systems, unknown_option
from gpt2train.model.gpt2_family import GPT2Options
from gpt2train.model.llama_family import LlamaOptions
from gpt2train.model.objectives import SpanCorruptionOptions
from gpt2train.model.t5_family import T5Options

DOCS = Path(__file__).parents[3] / "docs"
NAMES = [(system, name) for system in systems().values() for name in system.names]
LAUNCHED = {"launch.processes", "launch.nodes", "launch.hosts"}


def settings_of(model: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        found.add(prefix + name)
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found |= settings_of(inner, f"{prefix}{name}.")
    return found


def options_of(program: App) -> set[str]:
    return {name for argument in program.assemble_argument_collection() for name in argument.names}


@pytest.mark.parametrize("system", systems().values(), ids=list(systems()))
def test_every_row_leads_somewhere(system: System) -> None:
    settings = settings_of(RunConfig) | LAUNCHED
    families = (GPT2Options, LlamaOptions, T5Options)
    settings |= {name for model in families for name in settings_of(model, "model.options.")}
    settings |= settings_of(SpanCorruptionOptions, "objective.options.")
    for name, row in system.names.items():
        assert row.to or row.why or row.by, name
        assert row.by is None or row.by in CONVERSIONS, name
        for target in row.to:
            option, _, command = target.partition(" of ")
            if not target.startswith("--"):
                assert target in settings, name
            elif command.startswith("gpt2train "):
                program: Any = app
                for part in command.split()[1:]:
                    program = program[part]
                assert option in options_of(program) or part == "wikitext", name
    assert all(system.row(name) or name in settings for name in system.defaults)
    assert (DOCS / f"{system.page}.md").is_file()


def test_the_table_covers_the_systems() -> None:
    assert len({name for _, name in NAMES}) >= 120
    expected = {"megatron", "deepspeed", "colossalai", "oneflow", "libai", "bmtrain", "nanogpt", "nanochat"}
    assert expected | {"torchtitan", "litgpt", "transformers"} <= systems().keys()


def test_every_form_of_a_name_gets_the_same_answer() -> None:
    options = options_of(app["generate"]) | options_of(app["plan"]) | {"--train.optimizer.lr", "--cluster"}
    for _, name in NAMES:
        if name.startswith("_"):  # of Python
            continue
        dashed = name.replace("_", "-")
        answers = {
            form: unknown_option(form, options).partition(": ")[2].replace(form.partition("=")[0], "NAME", 1)
            for form in (f"--{dashed}", f"--{name}", f"--{dashed}=3")
        }
        assert len(set(answers.values())) == 1, answers
        assert "docs/" in answers[f"--{name}"], name
        if not name.startswith("no_"):
            assert known(f"--no-{dashed}"), name


def test_a_suggestion_is_close() -> None:
    options = ["--cluster", "--score", "--lambada", "--evals", "--train.steps", "--tokens", "--data", "--output"]
    for wrong in ("--lr", "--save", "--load", "--gas", "--optimise"):
        assert closest(wrong, options) is None
    assert closest("--steps", options) == "--train.steps"
    draw = random.Random(0)
    for _ in range(300):
        option = draw.choice(options)
        place = draw.randrange(2, len(option))
        typed = option[:place] + draw.choice(["", "x", "e"]) + option[place + draw.choice([0, 1]) :]
        found = closest(typed, options)
        if found is not None and found.rpartition(".")[2] != typed.lstrip("-"):
            assert difflib.SequenceMatcher(None, found.lstrip("-"), typed.lstrip("-")).ratio() >= SIMILAR


def test_a_name_of_several_systems_says_whom_it_follows() -> None:
    answer = hint("--warmup-steps", {"--train.schedule.warmup"})
    assert answer and answer.startswith(
        "transformers' Trainer's --warmup-steps is --train.schedule.warmup here; nanochat's"
    )
    assert hint("--global-batch-size", set()) == (
        "Megatron-LM's --global-batch-size is --train.batch.global-batch of python -m flows.pretrain "
        "(docs/coming-from/megatron-lm.md)"
    )
    assert hint("--no-such-name", set()) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--load", "x"], "unknown option --load: Megatron-LM's --load is --model here"),
        (["evaluate", "lambada", "--strict-lambada", "--load", "x"], "unknown option --strict-lambada: "),
        (["merge", "--model-type", "GPT"], "gpt2train merge reads it from the run"),
        (["data", "tokenize", "--input", "x.json"], "takes files without an option"),
        (["data", "tokenize", "x", "--output-prefix=y"], "--output-prefix is --output here"),
        (["data", "tokenize", "x", "--output", "y", "--chunk_size", "25"], "--chunk_size has no counterpart here"),
        (["plan", "--lr=3e-4"], "Megatron-LM's --lr is --train.optimizer.lr of python -m flows.pretrain"),
        (["plan", "--tensor-model-parallel-size", "2"], "--tensor-model-parallel-size is --tp here"),
        (["plan", "--no-bias-gelu-fusion"], "torch.compile fuses"),
        (["generate", "--out-seq-length", "5"], "--out-seq-length is --max-new-tokens here"),
        (["generate", "--max-tokens", "5"], "(docs/coming-from/names.md); did you mean --max-new-tokens?"),
        (["serve", "--batch-size", "5"], "(docs/coming-from/megatron-lm.md); did you mean --max-batch-size?"),
        (["plan", "--preset"], "--preset requires an argument"),
    ],
)
def test_commands_know_the_names(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "3e-4"], "--lr is optimizer.lr here (docs/coming-from/megatron-lm.md); give a setting by --set"),
        (["--config", "x.toml", "--from_torch"], "ColossalAI's --from_torch has no counterpart here"),
        (["--conf", "x.toml", "--gas=2"], "CPM-Pretrain's --gas is batch.gradient_accumulation_steps here"),
        (["--config", "x.toml", "--timeouts=2"], "unknown option --timeouts; did you mean --timeout?"),
    ],
)
def test_the_training_knows_the_names(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
