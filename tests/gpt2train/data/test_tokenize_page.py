"""The commands of docs/data/tokenize.md run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest

from flows.settings import DataprepSettings
from gpt2train.cli import app, run_command
from gpt2train.data.indexed import IndexedDataset
from gpt2train.data.tokenizer import save_tokenizer
from tests.gpt2train.data.test_tokenize_files import SAMPLE, owt
from tests.gpt2train.data.test_tokenizer import small_tables

PAGE = Path(__file__).parents[3] / "docs/data/tokenize.md"


def commands() -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample.json").write_text(SAMPLE)
    (tmp_path / "openwebtext.tar.xz").write_bytes(owt([b"one page", b"another"]))
    (tmp_path / "gpt2-tokenizer").mkdir()
    save_tokenizer(tmp_path / "gpt2-tokenizer", *small_tables())
    first, second, flow = commands()
    for command in (first, second):
        assert command[0] == "gpt2train" and run_command(app, command[1:]) == 0
    assert [len(IndexedDataset(prefix)) for prefix in ("tokens/sample", "owt/tokens")] == [2, 2]
    # The flow takes minutes; tests/tasks/tokenizer runs the step. Its flags are settings.
    assert flow[:3] == ["python", "-m", "flows.dataprep"]
    given = dict(zip(flow[7::2], flow[8::2], strict=True))
    settings = {name.removeprefix("--tokenizer.").replace("-", "_"): value for name, value in given.items()}
    assert DataprepSettings.model_validate({"tokenizer": settings}).tokenizer.algorithm == "sentencepiece_unigram"
