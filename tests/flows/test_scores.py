"""`flows.pretrain --score`: merge and scores after the training, on data in another output, by any of the flows."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.evaluate import evaluate
from flows.pretrain import pretrain
from flows.recipe import PlannedRun
from flows.settings import EvaluateFlowSettings, PipelineSettings, PretrainFlowSettings, resolve
from flows.ui.result import result
from gpt2train.errors import UserError
from gpt2train.store.manifest import Manifest
from tasks.report.step import ReportSettings, report
from tests.flows.commands import run
from tests.flows.small_tokens import TRAIN, prepare_scored_data
from tests.tasks.corpus import Inline

SCORES = {"evaluate": {"prompts": ["The"], "sampling": {"max_new_tokens": 4}}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_scored_data(tmp_path_factory.mktemp("scores") / "data")


def planned(output: Path, **flags: Any) -> PlannedRun[PretrainFlowSettings]:
    train = {**TRAIN, "device": "cpu"}
    given = {"output": str(output), "train": train, "launch": {"processes": 1}, "score": True, **SCORES, **flags}
    return pretrain.planned(resolve(PretrainFlowSettings, flags=given))


def trained(planned_run: PlannedRun[PretrainFlowSettings]) -> list[Manifest]:
    """The manifests of the flow's steps, run without Prefect."""
    planned_run.check()
    with Inline(workers=1) as runner:
        return planned_run.recipe(runner)


@pytest.mark.exhaustive
def test_a_pretraining_ends_with_model_and_scores(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    planned_run = planned(tmp_path / "out", data=str(data))
    assert [name for name, _ in planned_run.cached_steps()] == ["train", "merge", "evaluate"]
    assert f"scores      cloze set {data}/evalset/cloze.jsonl, perplexity of held-out" in planned_run.shown_plan()
    training, model, scores = trained(planned_run)
    assert [record.name for record in scores.outputs] == ["lambada.json", "perplexity.json", "samples.json"]
    assert {"model.safetensors", "tokenizer.json"} <= {record.name for record in model.outputs}
    page = result(planned_run.root, [training, model, scores])
    assert "| whole word, accuracy |" in page and f"gpt2train serve --model {tmp_path}/out/{model.folder}" in page
    card = (tmp_path / "out" / model.folder / "README.md").read_text()
    assert "last word, accuracy (" in card and "| shuffle |" in card
    assert not [record for record in caplog.records if record.levelname == "WARNING" and "score" in record.message]

    # The flow of the scores finds the same data, and has nothing left to do.
    settings = resolve(EvaluateFlowSettings, flags={"run": str(tmp_path / "out" / training.folder), **SCORES})
    assert evaluate.planned(settings).cached_steps() == [("merge", model), ("evaluate", scores)]

    # Tasks and suites are scored in addition; without them the fingerprint is as before.
    tasks = write_tasks(tmp_path)
    *_, scores = trained(planned(tmp_path / "out", data=str(data), tasks=tasks))
    assert [record.name for record in scores.outputs][-2:] == ["choice.json", "both.json"]
    page = result(planned_run.root, [training, model, scores])
    assert "| both/one, accuracy | " in page and ", random 0.5000, Another model 0.7500 |" in page
    assert "| both, centred | " in page
    report(planned_run.root, [scores], ReportSettings(), runner=Inline(workers=1))
    whole = (tmp_path / "out/report/report.html").read_text()
    assert "<td>both/one</td>" in whole and "Another model 0.7500</td>" in whole and "95 % interval" in whole
    with (tmp_path / "choice.toml").open("a") as file:
        file.write("[published.Edited]\naccuracy = 0.1\n")
    assert trained(planned(tmp_path / "out", data=str(data), tasks=tasks))[-1].fingerprint != scores.fingerprint

    # Without documents and cloze set, the training of the same tokens is scored as far as it can be.
    bare = tmp_path / "bare"
    shutil.copytree(data, bare, ignore=shutil.ignore_patterns("evalset", "shuffled"))
    *_, scores = trained(planned(tmp_path / "out", data=str(bare)))
    assert [record.name for record in scores.outputs] == ["samples.json"]
    assert f"no cloze score: {bare} holds no cloze set of its own; give --lambada FILE" in caplog.text


def write_tasks(folder: Path) -> dict[str, Any]:
    """Settings of a task and of a suite, with their data."""
    rows = [{"query": f"{n} is", "choices": ["a number", "a horse of"], "gold": n % 2} for n in range(6)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = 'kind = "multiple_choice"\ndata = ["items.jsonl"]\n'
    published = '"Another model" = { accuracy = 0.75 }\n'
    (folder / "choice.toml").write_text(f"{task}[published]\n{published}")
    (folder / "both.toml").write_text(f'kind = "suite"\n[tasks.one]\n{task}[tasks.one.published]\n{published}')
    return {"names": [str(folder / f"{name}.toml") for name in ("choice", "both")], "data": str(folder)}


def test_wrong_data_of_the_scores_end_the_run_before_the_training(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text("no JSON\n")
    for flag, name in (("--lambada", "bad.jsonl"), ("--lambada", "none.jsonl"), ("--wikitext", "none.tokens")):
        words = ["--data", str(data), "--output", str(tmp_path / "out"), "--score", flag, str(tmp_path / name)]
        assert run("pretrain", *words) == 2
        error = capsys.readouterr().err
        assert name in error and error.count("\n") == 1
    for tasks, message in (
        (["--tasks.names", "hellaswag"], "tasks.names needs tasks.data"),
        (["--tasks.names", "helaswag", "--tasks.data", str(tmp_path)], "there is no task 'helaswag'"),
        (["--tasks.names", "hellaswag", "--tasks.data", str(tmp_path)], "has no **/hellaswag_val.jsonl"),
    ):
        assert run("pretrain", "--data", str(data), "--output", str(tmp_path / "out"), "--score", *tasks) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    with pytest.raises(UserError, match="lambada has a setting of its own"):
        planned(tmp_path / "out", evals={"lambada": "x"})
    assert not (tmp_path / "out/runs").exists()


def test_the_settings_of_a_deployment_serve_the_pipeline_too() -> None:
    assert resolve(PretrainFlowSettings, "pretrain/345m").score
    assert not resolve(PretrainFlowSettings, "pretrain/345m", {"score": False}).score
    assert not resolve(PretrainFlowSettings).score
    assert resolve(PipelineSettings, "pretrain/345m").preset == "345m"
    assert resolve(EvaluateFlowSettings, "pretrain/345m", {"run": "out/runs/x"}).run == "out/runs/x"
