"""`gpt2train evaluate`: passages, tasks and suites, a curve of a run, mistakes."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpt2train.convert.merge import merge
from gpt2train.errors import UserError
from gpt2train.evaluate import curve
from gpt2train.evaluate.registry import EVALUATIONS
from gpt2train.evaluate.tasks import description, scores
from gpt2train.evaluate.tasks.description import ready_files
from tests.gpt2train.convert.model_folders import write
from tests.gpt2train.evaluate.conftest import Call
from tests.gpt2train.models import noisy_model
from tests.small_disk import small_disk
from tests.trained_run import TrainedRun


@pytest.fixture
def run(trained_run: TrainedRun, tmp_path: Path) -> Path:
    shutil.copytree(trained_run.root, tmp_path / "out")
    checkpoints = tmp_path / "out/runs/small/checkpoints"
    first = checkpoints / "step-00000001"
    shutil.copytree(checkpoints / "step-00000002", first)
    (first / ".manifest.sha256").unlink()
    manifest = json.loads((first / "manifest.json").read_text())
    manifest["position"] |= {"step": 1, "samples": 2, "updates": 1}
    (first / "manifest.json").write_text(json.dumps(manifest | {"valid_loss": 5.5}))
    return tmp_path / "out/runs/small"


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps({"text": f"the {n} words of a passage"}) + "\n" for n in range(5)))
    return path


def test_a_checkpoint_scores_as_its_merged_model(call: Call, run: Path, passages: Path, tmp_path: Path) -> None:
    merge(run, tmp_path / "merged", run.parents[1] / "tokenizer")
    models = [tmp_path / "merged", run, run / "checkpoints/step-00000001"]
    flags = [flag for model in models for flag in ("--model", model)]
    tokenizer = run.parents[1] / "tokenizer"
    code, out, err = call("lambada", *flags[2:], "--data", passages, "--tokenizer", tokenizer)
    assert (code, err) == (0, "")
    assert call("lambada", *flags[:2], "--data", passages)[0] == 0
    files = [tmp_path / "merged/eval", run / "scores/step-00000002", run / "scores/step-00000001"]
    results = [json.loads((folder / "lambada.json").read_text()) for folder in files]
    assert [result.pop("model") for result in results] == list(map(str, models))
    assert results[0] == results[1] == results[2]
    assert [line for line in out if line.startswith("scores: ")] == [f"scores: {f}/lambada.json" for f in files[1:]]
    row = next(line for line in out if line.startswith("lambada_openai accuracy"))
    assert row.count("0.0000 ± 0.0000") == 2 and "strict whole word" in row
    assert sum(line.startswith("note: 5 passages, LAMBADA's test set has 5,153") for line in out) == 1


def test_several_models_are_written_to_one_file(call: Call, run: Path, tmp_path: Path) -> None:
    text, output = tmp_path / "wiki.tokens", tmp_path / "both.json"
    text.write_text("A word , and another . \n" * 9)
    flags = ["--model", run, "--model", run / "checkpoints/step-00000001", "--data", text, "--output", output]
    code, out, err = call("wikitext", *flags, "--stride", 16)
    assert (code, err) == (0, "")
    first, second = json.loads(output.read_text())["models"]
    assert first.pop("model") != second.pop("model")
    assert first == second and first["stride"] == 16
    assert out[-1] == f"scores: {output}"
    assert len([line for line in out if line.startswith("adjusted_perplexity")]) == 1


@pytest.mark.parametrize("output", [None, "all.json"])
@pytest.mark.parametrize("evaluation", ["lambada", "choice.toml"])
def test_a_model_that_fails_is_named_and_those_before_it_keep_their_scores(
    call: Call, folder: Path, passages: Path, open_data: Path, evaluation: str, output: str | None
) -> None:
    bpe, weights = noisy_model(open_data, folder, 64)
    good = write(weights, folder / "good", bpe)
    weights.get_parameter("ln_f.bias").fill_(float("nan"))
    broken = write(weights, folder / "broken", bpe)
    data = passages if evaluation == "lambada" else folder / "data"
    task = evaluation if evaluation == "lambada" else folder / evaluation
    flags = [] if output is None else ["--output", folder / output]
    flags += [] if evaluation == "lambada" else ["--log-samples"]
    code, out, err = call(task, "--model", good, "--model", broken, "--data", data, *flags)
    assert code == 1 and err.startswith(f"error: {broken}: the model gives numbers that are not finite")
    file = good / f"eval/{Path(evaluation).stem}.json" if output is None else folder / output
    found = json.loads(file.read_text())
    assert [one["model"] for one in found.get("models", [found])] == [str(good)] and f"scores: {file}" in out
    assert any(line.split()[-1:] == ["published"] or line.startswith("passages 5") for line in out)  # the table
    if evaluation != "lambada":  # beside the result, wherever that is
        samples = [json.loads(line) for line in file.with_suffix(".samples.jsonl").read_text().splitlines()]
        assert [row["item"] for row in samples] == list(range(8)) and f"samples: {file.with_suffix('')}" in out[-1]
        assert {row.get("model") for row in samples} == {None if output is None else str(good)}


def test_an_older_result_on_a_disk_without_writing_is_found_before_the_scoring(
    call: Call, run: Path, passages: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "64k") as made:
        if not made:
            pytest.skip("mounting is not allowed")
        older = tmp_path / "disk/older.json"
        older.write_text('{"data_sha256": ""}')
        subprocess.run(["mount", "-o", "remount,ro", str(older.parent)], check=True)
        tokenizer = ["--tokenizer", run.parents[1] / "tokenizer"]
        code, out, err = call("lambada", "--model", run, "--data", passages, "--output", older, *tokenizer)
        assert (code, out) == (2, []) and f"{older} cannot be written" in err, err


@pytest.mark.slow
def test_a_curve_scores_no_checkpoint_twice(
    call: Call, run: Path, passages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "wiki.tokens"
    text.write_text("A word , and another . \n" * 9)
    tokenizer = ["--tokenizer", run.parents[1] / "tokenizer"]
    code, out, err = call("curve", run, "--data", passages, *tokenizer)
    assert (code, err) == (0, "")
    found = json.loads((run / "scores/curve.json").read_text())
    points = [(point["step"], point["tokens"], point["valid_loss"]) for point in found["points"]]
    assert points == [(1, 128, 5.5), (2, 256, None)]
    assert found["reused"] == 0
    assert (run / "scores/curve.png").read_bytes()[:4] == b"\x89PNG"
    assert out[1].split()[:3] == ["1", "128", "5.5"]
    assert out[-1] == f"curve: {run}/scores/curve.png"

    asked: list[Path] = []
    read = curve.read_checkpoint

    def reading(checkpoint: Path, *rest: Any) -> Any:
        asked.append(checkpoint)
        return read(checkpoint, *rest)

    monkeypatch.setattr(curve, "read_checkpoint", reading)
    assert call("curve", run, "--data", passages, *tokenizer)[0] == 0
    again = json.loads((run / "scores/curve.json").read_text())
    assert asked == []
    assert again == found | {"reused": 2}
    manifest = run / "checkpoints/step-00000001/manifest.json"
    manifest.write_text(manifest.read_text().replace("5.5", "5.4"))
    assert call("curve", run, "--data", passages, *tokenizer)[0] == 0
    assert asked == [run / "checkpoints/step-00000001"]
    assert call("curve", run, "--data", passages, "--wikitext", text, *tokenizer)[0] == 0
    assert len(asked) == 3
    assert json.loads((run / "scores/curve.json").read_text())["reused"] == 2


def test_without_data_the_curve_consists_of_validation_losses(call: Call, run: Path, tmp_path: Path) -> None:
    code, out, err = call("curve", run, "--output", tmp_path / "curve")
    assert (code, err) == (0, "")
    assert [line.split() for line in out[1:3]] == [["1", "128", "5.5"], ["2", "256", "–"]]
    assert (tmp_path / "curve/curve.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lambada", "--model", "{run}", "--model", "{run}", "--data", "{data}"], "is given twice"),
        (["lambada", "--model", "{data}", "--data", "{data}"], "is a file, but a folder is needed"),
        (["lambada", "--model", "{run}/logs", "--data", "{data}"], "is neither a model folder (no config.json) nor"),
        (["lambada", "--model", "{run}", "--data", "{data}", "--output", "{data}"], "contains no scores"),
        (["lambada", "--model", "{run}", "--data", "{data}", "--tp", "2"], "which --tp and --pp need"),
        (["lambada", "--model", "{run}", "--model", "b", "--data", "{data}", "--pp", "2"], "need one --model"),
        (["lambada", "--model", "{run}", "--data", "{data}", "--batch-tokens", "0"], "--batch-tokens"),
        (["wikitext", "--model", "{run}", "--data", "{data}", "--stride", "65"], "stride 65 does not fit"),
        (["curve", "{run}/checkpoints"], "is not a run folder"),
        (["curve", "{run}", "--data", "{run}/config.toml"], "config.toml line 1"),
    ],
)
def test_mistakes_are_one_error_line(call: Call, run: Path, passages: Path, arguments: list[str], message: str) -> None:
    before = passages.read_bytes()
    check_refusal(call, message, *(argument.format(run=run, data=passages) for argument in arguments))
    assert passages.read_bytes() == before


def check_refusal(call: Call, message: str, *arguments: str) -> None:
    code, _, err = call(*arguments)
    assert code == 2 and message in err and err.startswith("error: ") and err.count("\n") == 1, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    rows = [
        {"query": f"{n} is", "choices": ["a number", "a horse of"], "gold": n % 2, "part": "ab"[n % 2]}
        for n in range(8)
    ]
    (data / "deep/items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "texts.jsonl").write_text('{"text": "A text of some words."}\n{"text": "Another one."}')
    (tmp_path / "choice.toml").write_text(
        'kind = "multiple_choice"\ndata = ["**/items.jsonl"]\ngroup = "part"\n[published]\n'
        '"Another model" = { accuracy = 0.75 }\n'
    )
    (tmp_path / "lambada.toml").write_text('kind = "perplexity"\ndata = ["texts.jsonl"]\n')
    for file in (data / "many.jsonl", data / "deep/many.jsonl"):
        file.touch()
    (tmp_path / "twice.toml").write_text('kind = "multiple_choice"\ndata = ["**/many.jsonl"]\n')
    (tmp_path / "both.toml").write_text(
        'kind = "suite"\n[defaults]\nrule = "core"\nkind = "multiple_choice"\n[tasks.one]\ndata = ["**/items.jsonl"]\n'
        '[tasks.two]\ndata = ["**/items.jsonl"]\nshots = 2\nrandom = 0.4\n[tasks.three]\ndata = ["absent.jsonl"]\n'
    )
    return tmp_path


def test_command(call: Call, folder: Path, open_data: Path) -> None:
    code, out, _ = call()  # without a task the help is shown
    assert code == 0 and any("lambada" in line for line in out)
    bpe, weights = noisy_model(open_data, folder, 64)
    model = folder / "linked"
    model.symlink_to(write(weights, folder / "model", bpe))
    tasks = [folder / "choice.toml", "documents", folder / "both.toml"]
    flags = ["--model", model, "--data", folder / "data", "--partial", "--log-samples"]
    (folder / "data/deep/items.jsonl").rename(folder / "data/deep/items.jsonl.kept")
    assert call(*tasks, *flags)[0] == 2
    (folder / "data/deep/items.jsonl.kept").rename(folder / "data/deep/items.jsonl")
    code, out, err = call(*tasks, *flags)
    assert (code, err) == (0, "")
    rows = {tuple(line.split()[:2]): line for line in out}
    assert out[0].split()[:3] == ["task", "metric", "items"]
    assert rows["choice", "accuracy"].endswith("Another model 0.7500") and " 0.5000 " in rows["choice", "accuracy"]
    assert ("choice", "accuracy_norm") in rows and ("documents", "bits_per_byte") in rows
    assert ("both/one", "accuracy") in rows and ("both/two", "accuracy") in rows
    assert any(line.startswith("note: both: mean of 2 tasks, without three") for line in out)
    results = folder / "model/eval"
    found = json.loads((results / "both.json").read_text())
    one, two = found["tasks"]["both/one"], found["tasks"]["both/two"]
    assert two["centred"] == pytest.approx((two["accuracy"] - 0.4) / 0.6, abs=1e-5)
    assert found["centred"] == pytest.approx((one["centred"] + two["centred"]) / 2, abs=1e-5)
    choice = json.loads((results / "choice.json").read_text())
    assert [choice["groups"][name]["items"] for name in "ab"] == [4, 4]
    low, high = choice["accuracy_interval"]
    assert low <= choice["accuracy"] <= high
    samples = [json.loads(line) for line in (results / "choice.samples.jsonl").read_text().splitlines()]
    assert [sample["item"] for sample in samples] == list(range(8))
    assert sum(sample["correct"] for sample in samples) / 8 == choice["accuracy"]
    before = (results / "choice.json").read_bytes()
    assert call(folder / "choice.toml", *flags)[0] == 0
    assert (results / "choice.json").read_bytes() == before
    output = folder / "all.json"
    code, out, _ = call(*tasks[:2], *flags[:4], "--output", output, "--limit", 1)
    assert (code, out[-1]) == (0, f"scores: {output}")
    assert [row["task"] for row in json.loads(output.read_text())["results"]] == ["choice", "documents"]
    assert any("choice: scored on 1 item of each task, not on all" in line for line in out)
    assert (results / "choice.json").read_bytes() == before


def test_a_task_in_the_curve_of_a_run(call: Call, folder: Path, trained_run: TrainedRun, tmp_path: Path) -> None:
    root = tmp_path / "out"
    shutil.copytree(trained_run.root, root)
    flags = ["--evals.documents", folder / "data/texts.jsonl", "--tokenizer", root / "tokenizer"]
    code, out, err = call("curve", root / "runs/small", *flags)
    assert (code, err) == (0, "")
    assert "documents bits_per_byte" in out[0]
    [point] = json.loads((root / "runs/small/scores/curve.json").read_text())["points"]
    assert point["documents"]["items"] == 2 and point["documents"]["bits_per_byte"] > 1
    with pytest.raises(UserError, match="there is no evaluation 'core'"):
        EVALUATIONS["core"]


@pytest.mark.exhaustive
def test_suites_and_descriptions_in_the_curve_of_a_run(
    call: Call, folder: Path, trained_run: TrainedRun, tmp_path: Path
) -> None:
    """The last checkpoint has the table of tasks; an edited description, other data or another limit score again."""
    root = tmp_path / "out"
    shutil.copytree(trained_run.root, root)
    scores = root / "runs/small/scores"
    choice, both = folder / "choice.toml", folder / "both.toml"
    flags = ["--task-data", folder / "data", "--partial", "--tokenizer", root / "tokenizer"]

    def reused(*tasks: object) -> int:
        code, out, err = call("curve", root / "runs/small", "--tasks", *tasks, *flags)
        assert (code, err) == (0, "")
        lines[:] = out
        return int(json.loads((scores / "curve.json").read_text())["reused"])

    lines: list[str] = []
    assert reused(choice, both) == 0
    assert "choice accuracy" in lines[0] and "both centred" in lines[0] and "both/one" not in lines[0]
    [point] = json.loads((scores / "curve.json").read_text())["points"]
    assert set(point["both"]["tasks"]) == {"both/one", "both/two"}
    rows = {tuple(line.split()[:2]): line for line in lines}
    low, high = point["choice"]["accuracy_interval"]
    assert f" {point['choice']['accuracy']:.4f} [{low:.4f}, {high:.4f}] " in rows["choice", "accuracy"]
    assert rows["choice", "accuracy"].endswith("0.5000  Another model 0.7500")
    assert ("both/one", "accuracy") in rows and ("both", "centred") in rows
    assert any(line.startswith("note: both: mean of 2 tasks") for line in lines)
    assert reused(choice, both) == 2
    [cached] = scores.glob("step-*/choice-*.json")
    before = cached.read_bytes()
    cached.write_bytes(before[:40])  # damaged: scored again, and replaced
    assert reused(choice, both) == 1 and cached.read_bytes() == before
    choice.write_text(choice.read_text().replace("[published]", 'delimiter = "  "\n[published]'))
    assert reused(choice, both) == 1
    flags += ["--limit", 3]
    assert reused(choice, both) == 0 and any("scored on 3 items" in line for line in lines)
    assert call("curve", root / "runs/small", "--tasks", choice)[2].count("give --task-data") == 1


def test_an_edited_description_of_the_package_scores_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity of an evaluation is that of its description."""
    before = EVALUATIONS["hellaswag"].identity
    assert before and before != EVALUATIONS["piqa"].identity and not EVALUATIONS["lambada"].identity
    ready = ready_files()
    text = ready["hellaswag"].read_text(encoding="utf-8")
    (folder / "hellaswag.toml").write_text("shots = 1\n" + text)
    changed = {**ready, "hellaswag": folder / "hellaswag.toml"}
    for module in (scores, description):
        monkeypatch.setattr(module, "ready_files", lambda: changed)
    assert EVALUATIONS["hellaswag"].identity != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "10"], "name a task or an evaluation, as in gpt2train evaluate hellaswag"),
        (["--device", "cpu", "lambada"], "lambada has a command of its own: gpt2train evaluate lambada"),
        (["helaswag", "--model", "m", "--data", "d"], "there is no task 'helaswag'; did you mean 'hellaswag'"),
        (["core/bolq", "--model", "m", "--data", "d"], "did you mean 'core/boolq'"),
        (["hellaswag", "--data", "d"], "evaluate hellaswag: give --model"),
        (["hellaswag", "--model", "m"], "evaluate hellaswag: give --data"),
        (["hellaswag", "--model", "m", "--data", "{data}"], "has no **/hellaswag_val.jsonl; put the data there (from "),
        (["hellaswag", "--model", "m", "--data", "{data}/absent"], "there is no such file or folder"),
        (["{data}/absent.toml", "--model", "m", "--data", "{data}"], "cannot read the settings file"),
        (["{folder}/both.toml", "--model", "m", "--data", "{data}"], "score the other tasks with --partial"),
        (["{folder}/both.toml", "--model", "m", "--data", "{data}/texts.jsonl"], "needs the folder of the data files"),
        (["{folder}/both.toml", "--model", "m", "--data", "{data}", "--partial", "--limit", "2"], "--limit 2; give"),
        (["{folder}/lambada.toml", "--model", "m", "--data", "{data}"], "task 'lambada': curve, "),
        (["documents", "documents", "--model", "m", "--data", "{data}"], "given twice"),
        (["{folder}/twice.toml", "--model", "m", "--data", "{data}"], "both fit **/many.jsonl; give --data the "),
        (["documents", "--model", "m", "--data", "{data}/deep/items.jsonl"], "'text' is undefined"),
    ],
)
def test_mistakes_about_tasks_are_one_error_line(call: Call, folder: Path, arguments: list[str], message: str) -> None:
    check_refusal(call, message, *(word.format(folder=folder, data=folder / "data") for word in arguments))
