"""`gpt2train generate`: its output, and refused settings."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from gpt2train.cli import app, run_command
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.runs.text_trace import traced_place
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.runs.indexed_corpus import make_indexed
from tests.tasks.corpus import row

SHAPE = Shape(vocab=50257, layers=1, heads=2, hidden=16, context=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, open_data: Path) -> Path:
    folder = tmp_path_factory.mktemp("generate") / "model"
    made = initialise(GPT2(SHAPE), 3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(8)
    write_model(folder, dict(made.state_dict()), SHAPE, open_data / "bpe")
    return folder


def call(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    code = run_command(app, ["generate", *flags])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_json_output_has_tokens_and_log_probabilities(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(model), "--prompt", "Once upon", "--prompt", "", "--max-new-tokens", "3", "--samples", "2"]
    code, out, err = call(
        capsys, *flags, "--json", "--log-probs", "--prompt-log-probs", "--top-log-probs", "2", "--dtype", "bfloat16"
    )
    assert (code, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["Once upon"] * 2 + [""] * 2
    for answer in answers:
        assert len(answer["tokens"]) == len(answer["scores"]) == 3
        assert answer["text"] == "".join(score["token"] for score in answer["scores"]) or "\ufffd" in answer["text"]
        assert all(len(score["top"]) == 2 and score["log_prob"] < 0 for score in answer["scores"])
    assert [score["token"] for score in answers[0]["prompt_scores"]] == [" upon"]
    assert answers[2]["prompt_scores"] == []


def test_a_prompt_of_unknown_tokens_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two"]
    (tmp_path / "words").mkdir()
    (tmp_path / "words/vocab.txt").write_text("\n".join(words))
    shape = Shape(vocab=len(words), layers=1, heads=2, hidden=16, context=24)
    write_model(tmp_path / "model", dict(initialise(GPT2(shape), 3).state_dict()), shape, tmp_path / "words")
    flags = ["--model", str(tmp_path / "model"), "--max-new-tokens", "2", "--json"]
    code, out, err = call(capsys, *flags, "--prompt", "QED VLK", "--prompt", "one VLK", "--prompt", "")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err.count("note: ") == 1 and "every token of the prompt 'QED VLK' is the unknown one" in err


@pytest.mark.skipif(find_spec("pydivsufsort") is None, reason="needs the extra trace")
def test_spans_of_training_tokens_are_shown(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "The old mill at the river turns all day and all night."
    corpus = make_indexed(tmp_path, [row(text, "https://a.test/mill")])
    capsys.readouterr()
    flags = ["--model", str(model), "--prompt", text[:40], "--max-new-tokens", "2", "--trace", str(corpus)]
    code, out, _ = call(capsys, *flags)
    assert code == 0 and "https://a.test/mill" in out and repr(text[:39])[1:-1] in out
    code, out, _ = call(capsys, *flags, "--json")
    [span] = json.loads(out)["trace"]["spans"]
    assert span["text"].startswith(text[:39])
    assert span["places"][0]["record"]["steps"][-1]["step"] == "shuffled"
    code, _, err = call(capsys, *flags[:-1])
    assert code == 2 and "lies in no run folder; give the run or the output folder: --trace OUT" in err


@pytest.mark.parametrize("inside", ["", "model", "checkpoints/step-00000002"])
def test_the_tokens_are_those_of_the_run_that_the_model_lies_in(tmp_path: Path, inside: str) -> None:
    (tmp_path / "run" / inside).mkdir(parents=True)
    (tmp_path / "run/config.toml").touch()
    assert traced_place([], tmp_path / "run" / inside) == tmp_path / "run"
    assert traced_place([Path("other")], tmp_path / "run" / inside) == Path("other")


def test_log_probabilities_are_shown(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(model), "--prompt", "One two", "--max-new-tokens", "0", "--prompt-log-probs"]
    code, out, _ = call(capsys, *flags, "--top-log-probs", "1")
    first, second, third = out.splitlines()
    assert (code, first, second) == (0, "One two", "[0 tokens, stopped: length]")
    assert third.startswith("  prompt    ' two'")


@pytest.mark.slow
def test_beams_are_shown_best_first(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(model), "--prompt", "One", "--prompt", "Two", "--beams", "3", "--max-new-tokens", "4"]
    code, out, _ = call(capsys, *flags, "--early-stopping", "never", "--length-penalty", "0.5", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [answer["prompt"] for answer in answers] == ["One"] * 3 + ["Two"] * 3
    scores = [answer["score"] for answer in answers]
    assert scores[:3] == sorted(scores[:3], reverse=True) and scores[3:] == sorted(scores[3:], reverse=True)
    code, out, _ = call(capsys, *flags)
    assert code == 0 and out.count("stopped: length, score -") == 6


def test_stop_strings_and_window_are_obeyed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(model), "--prompt", "word " * 30, "--max-new-tokens", "30", "--temperature", "0", "--json"]
    code, _, err = call(capsys, *flags)
    assert code == 2 and "prompt 1 has 31 tokens, the model's context is 24" in err
    code, out, _ = call(capsys, *flags, "--window", "6")
    whole = json.loads(out)
    assert (code, len(whole["tokens"]), whole["stopped"]) == (0, 30, "length")
    code, out, _ = call(capsys, *flags, "--window", "6", "--stop", "nowhere", "--stop", whole["text"][5:9])
    cut = json.loads(out)
    assert (code, cut["stopped"], cut["text"]) == (0, "stop", whole["text"][: whole["text"].index(whole["text"][5:9])])
    code, out, _ = call(capsys, *flags, "--window", "6", "--stop-tokens", str(whole["tokens"][0]))
    assert (code, json.loads(out)["text"]) == (0, "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-new-tokens", "0"], "error: max_new_tokens is 0 and prompt_log_probs is off"),
        (["--top-p", "0.5", "--top-p-bound", "0.9"], "error: top_p_bound 0.9 is above top_p 0.5"),
        (["--beams", "2", "--temperature", "0.5"], "--temperature has no effect with --beams"),
        (["--beams", "2", "--prompt-log-probs"], "--prompt-log-probs has no effect with --beams"),
        (["--beams", "500"], "error: beam search: beams: input should be less than or equal to 128"),
        (["--tp", "2", "--dtype", "float16"], "--dtype float16 needs a model in one process"),
    ],
)
def test_wrong_options_fail(model: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    code, out, err = call(capsys, "--model", str(model), "--prompt", "x", *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_control_characters_of_a_model_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from gpt2train.inference.command import _show

    _show({"prompt": "a\x1b[31m", "text": "b\nc", "tokens": [1], "stopped": "end"}, False)
    assert capsys.readouterr().out == "a\ufffd[31mb\nc\n[1 token, stopped: end]\n"
