"""`gpt2train chat`: a conversation in the terminal, and a folder without a template."""

import io
import sys
from pathlib import Path

import pytest

from gpt2train.cli import app, run_command
from gpt2train.data.chat_template import FILE
from tests.gpt2train.serve.fixed_text_model import write_reciting_model

TEMPLATE = "{% for m in messages %}{{ m.content + (eos_token if m.role == 'assistant' else '\n') }}{% endfor %}"
GREEDY = ("--temperature", "0", "--device", "cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers "Hello" with "I hear you.", and the second one with what follows the first 24 tokens."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    write_reciting_model(folder, "Hello\nI hear you.\0Hello\nAgain.\0", end="\0")
    (folder / FILE).write_text(TEMPLATE)
    return folder


def chat(model: Path, lines: str, *flags: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return run_command(app, ["chat", "--model", str(model), *GREEDY, *flags])


def test_the_history_is_sent(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(model, "Hello\n\n  \nHello\n", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "I hear you.\nAgain.\n\n"
    assert chat(model, "you\n", "--system", "I hear", "--max-new-tokens", "3", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "r y\n\n"  # what follows the first 11 tokens


def test_a_message_that_does_not_fit_is_refused_and_the_conversation_goes_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(model, "a" * 5000 + "\nHello\n", monkeypatch=monkeypatch) == 0
    found = capsys.readouterr()
    assert "error: the message has 5001 tokens, the model's context is 4096; shorten it" in found.err
    assert found.out == "I hear you.\n\n"
    long = "b" * 2100
    assert chat(model, f"{long}\n{long}\n{long}\n", "--max-new-tokens", "1", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().err == ""  # the first ones are forgotten


def test_mistakes_are_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reciting_model(tmp_path / "plain", "abc")
    for folder, flags, said in (
        (tmp_path / "plain", (), "plain has no chat template (chat_template.jinja, or chat_template in"),
        (tmp_path / "none", (), "there is no folder"),
        (model, ("--samples", "2"), "--samples has no effect in a conversation; leave it out"),
    ):
        assert chat(folder, "", *flags, monkeypatch=monkeypatch) == 2
        found = capsys.readouterr()
        assert said in found.err and found.err.count("\n") == 1
