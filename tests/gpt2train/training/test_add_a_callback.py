"""The callback of docs/develop/add-a-callback.md, installed outside of the repository."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.jobs import finish, make, start, with_lr, write
from tests.tasks.plugin_page import ROOT, files_of, install

PAGE = "add-a-callback.md"


@pytest.mark.slow
def test_a_run_that_learns_no_more_is_stopped(tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed").mkdir()
    install(PAGE, tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path / 'installed'}")
    # Without a learning rate worth the name the validation loss stays where it is.
    config = with_lr(make(tokens, tmp_path / "run", steps=30, validation={"interval": 2, "samples": 7}), 1e-12)
    path = Path(write(config.model_copy(update={"schedule": config.schedule.model_copy(update={"min_lr": 0.0})})))
    chosen = tomllib.loads(files_of(PAGE)["settings.toml"])["train"]["callbacks"]
    path.write_text(f"callbacks = {json.dumps(chosen)}\n{path.read_text()}")
    code, _, err = finish(start("-m", "gpt2train.train", "--config", str(path), processes=2))
    assert code == 0, err
    losses = [row["valid_loss"] for row in read_metrics(config.output) if "valid_loss" in row]
    steps = len(read_metrics(config.output))
    assert len(losses) >= 4 and steps == 2 * len(losses) + 1 < 30
    assert newest_checkpoint(config.output).name == f"step-{steps:08}"
    best = json.loads((Path(config.output) / "early-stop.json").read_text())
    assert best == {"best": min(losses), "steps": steps}
    assert (
        "the validation loss has not fallen for 3 validations" in (Path(config.output) / "logs/rank-0.log").read_text()
    )
