"""The page with a complete run file shows what the command prints."""

import re
import shlex
from pathlib import Path

import pytest

from gpt2train.cli import app
from gpt2train.command_line import run_command
from gpt2train.config import read_run_config

PAGE = Path(__file__).parents[2] / "docs/train/run-file.md"


def test_the_page_shows_the_output_of_its_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    [command] = re.findall(r"^gpt2train (config .*) > run.toml$", text, re.M)
    [shown] = re.findall(r"^```toml\n(.*?)^```$", text, re.M | re.S)
    assert run_command(app, shlex.split(command)) == 0
    assert capsys.readouterr().out == shown, "write the output of the command into the page again"
    (tmp_path / "run.toml").write_text(shown)
    assert read_run_config(tmp_path / "run.toml").model.layers == 24
