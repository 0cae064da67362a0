"""Checkpoints are found by their names; `--complete` compares the newest one with the last step."""

from pathlib import Path

import pytest

from gpt2train.config import CONFIG_FILE, preset, run_config, to_toml
from gpt2train.config.run import TrainSettings
from gpt2train.errors import UserError
from gpt2train.launch.torchrun import UNFINISHED, _completeness
from gpt2train.settings import build
from gpt2train.store.run_folder import (
    FOLDER,
    MANIFEST,
    checkpoint_name,
    checkpoint_step,
    list_checkpoints,
    list_without_manifest,
    newest_checkpoint,
)


def add(run: Path, name: str, manifest: bool = True) -> Path:
    folder = run / FOLDER / name
    folder.mkdir(parents=True)
    if manifest:
        (folder / MANIFEST).write_text("{}")
    return folder


@pytest.mark.parametrize("step", [0, 7, 100, 123_456_789])
def test_a_name_gives_back_its_step(step: int) -> None:
    assert checkpoint_step(Path("run") / FOLDER / checkpoint_name(step)) == step


def test_a_checkpoint_has_a_manifest_and_is_no_draft(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        newest_checkpoint(tmp_path)
    older, newer = add(tmp_path, checkpoint_name(5)), add(tmp_path, checkpoint_name(20))
    add(tmp_path, checkpoint_name(30) + ".tmp")
    broken = add(tmp_path, checkpoint_name(40), manifest=False)
    assert list_checkpoints(tmp_path) == [older, newer] and newest_checkpoint(tmp_path) == newer
    assert list_without_manifest(tmp_path) == [broken]


def test_a_run_that_stopped_early_is_unfinished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = build(TrainSettings, preset("tiny"), {"steps": 1000})
    config = run_config(settings, train="t", valid=None, vocab=300, tokenizer_hash=None, output=str(tmp_path))
    (tmp_path / CONFIG_FILE).write_text(to_toml(config))
    add(tmp_path, checkpoint_name(20))
    assert _completeness(tmp_path) == UNFINISHED == 75
    assert capsys.readouterr().out == "stopped at step 20 of 1000; it resumes from there when it is started again\n"
    add(tmp_path, checkpoint_name(1000))
    assert _completeness(tmp_path) == 0
