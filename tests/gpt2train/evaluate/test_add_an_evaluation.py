"""The evaluation of docs/develop/add-an-evaluation.md in the commands, installed outside of the repository."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id, load_tokenizer
from gpt2train.errors import UserError
from gpt2train.evaluate.eval_model import read_eval_model
from gpt2train.evaluate.evaluation import Evaluation
from gpt2train.evaluate.metrics import Metric
from gpt2train.evaluate.registry import EVALUATIONS
from tests.tasks.plugin_page import ROOT, install
from tests.tasks.plugin_page import run as run_program
from tests.trained_run import TrainedRun

PAGE = "add-an-evaluation.md"
ITEMS = [
    {"question": "A cat is", "choices": ["an animal", "a number"], "label": 0},
    {"question": "Two and two is", "choices": ["four", "five", "a horse"], "label": 0},
    {"question": "Naïve", "choices": ["é", "e"], "label": 1},
]


def call(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gpt2train", "evaluate", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "installed"
    folder.mkdir()
    install(PAGE, folder)
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    return folder


@pytest.fixture
def run(trained_run: TrainedRun, tmp_path: Path) -> Path:
    shutil.copytree(trained_run.root, tmp_path / "out")
    return tmp_path / "out/runs/small"


def plain_answers(model: Path, tokenizer_folder: Path, items: Path) -> list[int]:
    """The choice with the highest sum of log-probabilities, each sequence alone in a plain forward pass."""
    network, tokenizer = read_eval_model(model, tokenizer=tokenizer_folder).model, load_tokenizer(tokenizer_folder)
    assert isinstance(network, torch.nn.Module)
    answers = []
    for item in map(json.loads, items.read_text().splitlines()):
        sums = []
        for choice in item["choices"]:
            question, target = encode_ordinary(tokenizer, [item["question"], f" {choice}"])
            ids = torch.tensor([end_of_text_id(tokenizer), *question, *target])
            logits = torch.nn.functional.linear(network.hidden(ids[None, :-1])[0], network.wte.weight)
            log_probs = logits[:, : network.shape.vocab].log_softmax(1).gather(1, ids[1:, None])[:, 0]
            sums.append(log_probs[-len(target) :].sum().item())
        answers.append(sums.index(max(sums)) == item["label"])
    return answers


@pytest.mark.exhaustive
def test_command_of_two_models_and_curve(installed: Path, run: Path, tmp_path: Path) -> None:
    items, tokenizer = tmp_path / "items.jsonl", run.parents[1] / "tokenizer"
    third = shutil.copytree(run / "checkpoints/step-00000002", run / "checkpoints/step-00000003")
    (third / ".manifest.sha256").unlink()
    manifest = json.loads((third / "manifest.json").read_text())
    manifest["position"] |= {"step": 3, "updates": 3}
    (third / "manifest.json").write_text(json.dumps(manifest))
    models = ["--model", run, "--model", run / "checkpoints/step-00000002"]
    done = call(installed, "multiple_choice", *models, "--data", items, "--tokenizer", tokenizer)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "items 3"
    steps = ("step-00000003", "step-00000002")
    results = [json.loads((run / f"scores/{step}/multiple_choice.json").read_text()) for step in steps]
    expected = plain_answers(run / "checkpoints/step-00000002", tokenizer, items)
    assert results[0]["accuracy"] == pytest.approx(sum(expected) / 3, abs=1e-6)
    assert (results[0]["data"], results[0]["separator"], results[0]["items"]) == ("items.jsonl", " ", 3)
    assert results[0] | {"model": ""} == results[1] | {"model": ""} != results[0]
    shown = f"{results[0]['accuracy']:.4f} ± {results[0]['standard_error']:.4f}"
    row = next(line for line in lines if line.startswith("accuracy "))
    assert row.count(shown) == 2 and "highest log p" in row

    done = call(installed, "curve", run, "--evals.multiple_choice", items, "--tokenizer", tokenizer)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith("multiple_choice accuracy")
    curve = json.loads((run / "scores/curve.json").read_text())
    assert [point["multiple_choice"]["accuracy"] for point in curve["points"]] == [results[0]["accuracy"]] * 2
    assert (run / "scores/curve.png").read_bytes()[:4] == b"\x89PNG"
    again = ["curve", run, "--evals.multiple_choice", items, "--tokenizer", tokenizer]
    assert call(installed, *again).returncode == 0
    assert json.loads((run / "scores/curve.json").read_text())["reused"] == 2
    install(PAGE, installed, version="2.0")
    assert call(installed, *again).returncode == 0
    assert json.loads((run / "scores/curve.json").read_text())["reused"] == 0


def test_help_and_mistakes(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"question": "a", "choices": ["b"], "label": 1}')
    commands = ["multiple_choice --help", "--help", f"multiple_choice --model m --data {tmp_path}/items.jsonl"]
    code = "import sys; from gpt2train.cli import app, run_command\n"
    code += "print([run_command(app, ['evaluate', *command.split()]) for command in sys.argv[1:]])"
    done = run_program(code, *commands, plugins=installed)
    assert all(part in done.stdout for part in ("--separator", "Text between question and choice", "--data"))
    assert "multiple_choice" in done.stdout.partition("Text between")[2]
    assert done.stdout.endswith("[0, 0, 2]\n") and done.stderr.count("\n") == 1
    assert "items.jsonl line 1: expected question, choices and label" in done.stderr
    (installed / "multiple_choice.py").write_text("import a_module_that_is_not_there")
    done = call(installed, "lambada", "--help")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "plug-in multiple-choice cannot be imported" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "have another meaning") for name in ("curve", "samples", "merge")),
        ("lambada", "two evaluations are named lambada"),
        *((name, "a name has lower-case letters") for name in ("Choice", "../x", "")),
    ],
)
def test_names_that_are_taken_or_no_names(name: str, message: str) -> None:
    entry = Evaluation(help="", data="", read=lambda raw, name: raw, run=lambda *_: {}, metrics=())
    with pytest.raises(UserError, match=message):
        EVALUATIONS.register(name, entry)
    assert list(EVALUATIONS) == ["lambada", "wikitext"]


def test_a_metric_that_a_result_lacks_is_a_dash() -> None:
    metric = Metric("a", "", scale="share", path=("b", "c"), error=("d",))
    assert metric.text_with_error({"b": {"c": 0.5}, "d": 0.25}) == "0.5000 ± 0.2500"
    assert metric.text_with_error({"b": {"c": 0.5}}) == "0.5000 ± 0.0000"
    assert (metric.text_with_error({"b": {}}), metric.text_with_error({"b": 1})) == ("–", "–")
