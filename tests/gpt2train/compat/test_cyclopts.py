"""Flags of whole numbers."""

from pathlib import Path

import cyclopts
import pytest

from gpt2train.command_line import run_command


@pytest.mark.parametrize(
    ("text", "code"),
    [("2", 0), ("30.0", 0), ("0x1e", 0), ("2.5", 2), ("-0.5", 2), ("1.0e400", 2), ("nan.", 2), ("two", 2)],
)
def test_a_fraction_for_a_whole_number_is_refused(text: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    seen = []
    app = cyclopts.App()

    @app.default
    def main(*, depth: int, share: float = 0.5, folder: Path = Path()) -> None:
        seen.append((depth, share))

    assert run_command(app, [f"--depth={text}", "--share=0.25"]) == code
    if code:
        error = capfd.readouterr().err
        assert error.startswith("error:") and text in error and "depth" in error and error.count("\n") == 1
    else:
        assert seen == [({"2": 2, "30.0": 30, "0x1e": 30}[text], 0.25)]
