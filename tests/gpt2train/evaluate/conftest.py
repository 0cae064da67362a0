"""The command `gpt2train evaluate` in the process of a test."""

from collections.abc import Callable

import pytest

from gpt2train.cli import app, run_command

Call = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, list[str], str]:
        code = run_command(app, ["evaluate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return run
