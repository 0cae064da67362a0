"""`gpt2train generate` and `chat`: what they print, and mistakes."""

import io
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from gpt2train.cli import app, run_command
from gpt2train.data.chat_template import FILE
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.runs.text_trace import traced_place
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.runs.indexed_corpus import make_indexed
from tests.gpt2train.serve.fixed_text_model import write_reciting_model
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


TEMPLATE = "{% for m in messages %}{{ m.content + (eos_token if m.role == 'assistant' else '\n') }}{% endfor %}"
GREEDY = ("--temperature", "0", "--device", "cpu")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers "Hello" with "I hear you.", and the second one with what follows the first 24 tokens."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    write_reciting_model(folder, "Hello\nI hear you.\0Hello\nAgain.\0", end="\0")
    (folder / FILE).write_text(TEMPLATE)
    return folder


def chat(talker: Path, lines: str, *flags: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return run_command(app, ["chat", "--model", str(talker), *GREEDY, *flags])


def test_the_history_is_sent(talker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(talker, "Hello\n\n  \nHello\n", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "I hear you.\nAgain.\n\n"
    assert chat(talker, "you\n", "--system", "I hear", "--max-new-tokens", "3", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "r y\n\n"  # what follows the first 11 tokens


def test_a_message_that_does_not_fit_is_refused_and_the_conversation_goes_on(
    talker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(talker, "a" * 5000 + "\nHello\n", monkeypatch=monkeypatch) == 0
    found = capsys.readouterr()
    assert "error: the message has 5001 tokens, the model's context is 4096; shorten it" in found.err
    assert found.out == "I hear you.\n\n"
    long = "b" * 2100
    assert chat(talker, f"{long}\n{long}\n{long}\n", "--max-new-tokens", "1", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().err == ""  # the first ones are forgotten


def test_mistakes_are_one_line(
    talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reciting_model(tmp_path / "plain", "abc")
    for folder, flags, said in (
        (tmp_path / "plain", (), "plain has no chat template (chat_template.jinja, or chat_template in"),
        (tmp_path / "none", (), "there is no folder"),
        (talker, ("--samples", "2"), "--samples has no effect in a conversation; leave it out"),
    ):
        assert chat(folder, "", *flags, monkeypatch=monkeypatch) == 2
        found = capsys.readouterr()
        assert said in found.err and found.err.count("\n") == 1
