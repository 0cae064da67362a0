"""Commands that the product prints for pasting: each parses, and means what is said."""

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from flows.settings import PretrainFlowSettings, resolve
from flows.ui.flags import dump
from gpt2train.cli import app, run_command
from gpt2train.config import RunConfig, TrainSettings, preset, presets, read_run_config
from gpt2train.errors import UserError
from gpt2train.parallel.layout import Layout
from gpt2train.plan.best_command import best_command
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.search import offload_of
from gpt2train.plan.settings_file import read_settings
from gpt2train.settings import build, parse_assignment
from tests.flows.commands import APPS

ROOT = Path(__file__).parents[2]
NAMES = "|".join([*app, *(f"data {name}" for name in app["data"])])
PRINTED = re.compile(rf"(?:python -m flows\.\w+|gpt2train (?:{NAMES})) [^,;:`()…\n]*")


def printed_commands() -> Iterator[tuple[str, str, list[ast.expr]]]:
    """Place, text and inserted values of each string of the product in which a command has arguments."""
    for file in sorted(file for layer in ("flows", "tasks", "gpt2train") for file in (ROOT / layer).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        within = {id(value) for node in joined for value in node.values}
        within |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        plain = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in within]
        for node in [*joined, *plain]:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            inserted = [part.value for part in parts if isinstance(part, ast.FormattedValue)]
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
            for match in PRINTED.finditer(text) if "gpt2train" in text or "flows." in text else ():
                before = text[: match.start()].count("{}")
                if "--" in match[0] or "{}" in match[0] or "%s" in match[0]:
                    values = inserted[before : before + match[0].count("{}")]
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", match[0].strip(" ."), values


def test_every_printed_command_parses_and_quotes_what_it_inserts() -> None:
    found = list(printed_commands())
    assert len(found) > 12
    for place, text, inserted in found:
        words = shlex.split(text.replace("{}", "X").replace("%s", "X"))
        program, words = (APPS[words[2][6:]], words[3:]) if words[0] == "python" else (app, words[1:])
        program.parse_args(words, exit_on_error=False, print_error=False)
        for value in inserted:
            assert isinstance(value, ast.Call) and ast.unparse(value.func) == "quote", (place, ast.unparse(value))


def settings_of(words: list[str]) -> PretrainFlowSettings:
    assert words[:3] == ["python", "-m", "flows.pretrain"]
    _, bound, _ = APPS["pretrain"].parse_args(words[3:], exit_on_error=False, print_error=False)
    flags = dump(bound.arguments["settings"], "python", given=True)
    return resolve(PretrainFlowSettings, bound.arguments.get("config"), flags)


@pytest.mark.parametrize("name", ["colossalai-gpt2-small", "oneflow-1x8"])
def test_the_best_layout_of_a_preset_is_that_of_its_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["plan", "--no-simulate", "--rows", "1", "--preset", name, "--gpus", "8"]) == 0
    _, head, row, *_, best = capsys.readouterr().out.splitlines()
    columns = dict(zip(head.split(), row.split("+")[0].split(), strict=False))
    found = settings_of(shlex.split(best.removeprefix("best: ")))
    p, layout = found.train.parallel, Layout.of(found.train, found.launch.world)
    degrees = {"tp": p.tp, "pp": p.pp, "dp": layout.data, "ZeRO": p.zero}
    batch = {"micro": layout.micro_batch, "accum": layout.accumulation, "samples": layout.global_batch}
    kinds = {"offload": offload_of(p), "recompute": p.activation_checkpointing}
    expected = {key: str(value).replace("none", "-") for key, value in (degrees | kinds | batch).items()}
    assert found.launch.world == 8 and {key: columns[key] for key in expected} == expected
    given = build(TrainSettings, preset(name))
    assert found.train.model_copy(update={"parallel": given.parallel, "batch": given.batch}) == given


PARALLEL = st.fixed_dictionaries(
    {},
    optional={
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2]),
        "zero": st.integers(0, 3),
        "sequence_parallel": st.booleans(),
        "cpu_offload": st.just(True),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
    },
)
BATCH = st.fixed_dictionaries(
    {},
    optional={
        "micro_batch": st.integers(0, 8),
        "global_batch": st.integers(0, 64),
        "gradient_accumulation_steps": st.integers(0, 4),
        "ramp_up": st.just({"start": 8, "increment": 8, "samples": 80}),
    },
)
CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "parallel": PARALLEL,
        "batch": BATCH,
        "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
        "model": st.just({"family": "llama", "layers": 6, "options": {"kv_heads": 4, "tied": True}}),
        "optimizer": st.fixed_dictionaries({"lr": st.floats(1e-3, 1)}),
        "logging": st.just({"tensorboard": False}),
        "seed": st.integers(0, 9),
    },
)
OPTIONS = st.one_of(
    st.just({}),
    st.sampled_from(presets()).map(lambda name: {"preset": name}),
    st.integers(2, 12).map(lambda depth: {"recipe": "modern", "depth": depth}),
    st.sampled_from(["8h", "1.7d", "3.3e18", "1e16"]).map(lambda budget: {"recipe": "modern", "budget": budget}),
)


@settings(max_examples=25, phases=[Phase.generate])  # shrinking would take minutes
@given(OPTIONS, st.sampled_from(["none", "settings", "flow", "run"]), CONFIG, PARALLEL, BATCH, st.integers(1, 30))
def test_the_command_of_any_settings_gives_them(
    tmp_path_factory: pytest.TempPathFactory,
    options: dict[str, Any],
    kind: str,
    config: dict[str, Any],
    parallel: dict[str, Any],
    batch: dict[str, Any],
    gpus: int,
) -> None:
    of_run = {"vocab": 999, "output": "it's here", "data": {"train": "x"}} if kind == "run" else {}
    path = None if kind == "none" else tmp_path_factory.mktemp("a b") / "file.toml"
    if path:
        path.write_text(tomli_w.dumps({"train": config} if kind == "flow" else config | of_run))
    hardware, file = Hardware(gpus=gpus), read_settings(path)
    base = file.below(options, lambda: lambda precision: 1e14)
    given = {} if kind == "none" else config
    try:
        best = build(TrainSettings, base[0], given, {"parallel": parallel, "batch": batch, "precision": "bf16"})
    except UserError:  # of a recipe and of other settings, that do not fit each other
        return
    words = shlex.split(best_command(best, file, options, base, hardware))
    if words[0] == "torchrun":
        pairs = list(pairwise(words))
        given_options = dict(pairs)
        changes = [parse_assignment(text) for option, text in pairs if option == "--set"]
        run = read_run_config(given_options["--config"], given_options.get("--preset"), changes)
        processes, nodes = int(given_options["--nproc-per-node"]), int(given_options.get("--nnodes", 1))
        assert run == build(RunConfig, dump(best, "python"), of_run)
    else:
        flow = settings_of(words)
        processes, nodes = flow.launch.processes, flow.launch.machines
        assert flow.train == best
    assert processes * nodes == gpus and processes <= 8
