"""`gpt2train evaluate`: checkpoints unmerged, several models side by side, a curve over a run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpt2train.convert.merge import merge
from gpt2train.evaluate import curve
from tests.gpt2train.evaluate.conftest import Call
from tests.trained_run import TrainedRun


@pytest.fixture
def run(trained_run: TrainedRun, tmp_path: Path) -> Path:
    shutil.copytree(trained_run.root, tmp_path / "out")
    checkpoints = tmp_path / "out/runs/small/checkpoints"
    first = checkpoints / "step-00000001"
    shutil.copytree(checkpoints / "step-00000002", first)
    manifest = json.loads((first / "manifest.json").read_text())
    manifest["position"] |= {"step": 1, "samples": 2}
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
    code, _, err = call(*(argument.format(run=run, data=passages) for argument in arguments))
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err
    assert passages.read_bytes() == before
