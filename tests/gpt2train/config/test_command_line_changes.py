"""Settings changed by `--set` on the command line of a training."""

from pathlib import Path
from typing import Any

import pytest

from gpt2train.config import read_run_config
from gpt2train.errors import UserError
from gpt2train.settings import parse_assignment

FILE = """
vocab = 300
output = "run"
steps = 90
[data]
train = "tokens"
[optimizer]
lr = 1e-3
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps=5", {"steps": 5}),
        ("optimizer.lr = 3e-4", {"optimizer": {"lr": 3e-4}}),
        ("data.train=my tokens", {"data": {"train": "my tokens"}}),
        ("data.train='a=b'", {"data": {"train": "a=b"}}),
        ("performance.tf32=false", {"performance": {"tf32": False}}),
        ("model.options={kv_heads = 2}", {"model": {"options": {"kv_heads": 2}}}),
        ("output=", {"output": ""}),
        ("output=a\nsteps = 1", {"output": "a\nsteps = 1"}),  # one value, not a second setting
    ],
)
def test_values_are_toml_or_plain_text(text: str, expected: dict[str, Any]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["steps", "=5", "optimizer..lr=1", ".lr=1", ""])
def test_text_without_a_setting_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^--set .*: give a setting and its value, such as --set optimizer.lr=3e-4$"):
        parse_assignment(text)


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(UserError, match="the value is nested too deeply") as caught:
        parse_assignment("steps=" + "[" * 5000)
    assert len(str(caught.value)) < 150


def test_changes_lie_above_the_file_and_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE)

    def read(*changes: str) -> Any:
        return read_run_config(file, "tiny", [parse_assignment(text) for text in changes])

    plain, changed = read(), read("optimizer.lr=3e-4", "optimizer.beta2=0.9", "optimizer.lr=2e-4")
    assert (plain.optimizer.lr, changed.optimizer.lr, changed.optimizer.beta2) == (1e-3, 2e-4, 0.9)
    assert changed.model_copy(update={"optimizer": plain.optimizer}) == plain
    with pytest.raises(UserError, match=r"^--set: unknown setting 'optimizer.lrr'; did you mean 'optimizer.lr'"):
        read("optimizer.lrr=1")
    with pytest.raises(UserError, match=r"^--set: steps: .* \(got 0\)"):
        read("steps=0")
    file.write_text(FILE.replace("steps = 90", "steps = 0"))
    with pytest.raises(UserError, match=r"run.toml: steps: "):
        read("optimizer.lr=1e-4")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('data.train=[{prefix="a",weight=-1}]', r"data.train.0.weight: input should be greater .* \(got -1\)"),
        ('data.train=[{prefix="a",weights=1}]', r"unknown setting '.*0.weights'; did you mean 'data.train.0.weight'\?"),
        ("data.train=5", r"data.train: input should be a valid string or a valid tuple \(got 5\)"),
        ("model.options.inner={a=1}", "model.options.inner: input should be a valid boolean, .* or a valid string"),
        ("output=", r"output: string should have at least 1 character \(got ''\)"),
    ],
)
def test_a_wrong_value_of_several_types_is_named_as_it_was_meant(change: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    with pytest.raises(UserError, match=f"^--set: {message}$"):
        read_run_config(file, "tiny", [parse_assignment(change)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: --config"),
        (["--config", "run.toml", "--timeout", "0"], "argument --timeout: 0 is not above 0 and at most 604800 seconds"),
        (["--config", "run.toml", "--timeout", "soon"], "argument --timeout: soon is not above 0"),
        (["--config", "run.toml", "--sets"], "unknown option --sets; did you mean --set?"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gpt2train.train import main  # imports torch

    with pytest.raises(SystemExit) as ended:
        main(flags)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith(f"error: {message}") and error.count("\n") == 1
