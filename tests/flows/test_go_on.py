"""A training that goes on from the settings of a removal (`gpt2train forget`), on tokens without the pages."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.pretrain import pretrain
from flows.settings import PretrainFlowSettings, resolve
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.folder import Folder
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tasks.core.forgotten import Forgotten, url_hash
from tasks.outputs.forget.training import find_runs, read_by, write_settings
from tests.flows.small_tokens import TRAIN, prepare_scored_data
from tests.tasks.corpus import Inline


def train(config: str | None = None, **flags: Any) -> Path:
    planned = pretrain.planned(resolve(PretrainFlowSettings, config, flags))
    planned.check()
    with Inline(workers=1) as runner:
        [trained] = planned.recipe(runner)
    return Path(planned.root.path(trained.folder))


@pytest.mark.slow
def test_a_training_goes_on_from_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = prepare_scored_data(tmp_path / "out")
    settings = {**TRAIN, "steps": 6, "device": "cpu", "checkpoints": {"interval": 2, "keep": 9}}
    run = train(data=str(out), output=str(out), train=settings, launch={"processes": 1})
    [found] = find_runs(Folder(out), None)
    assert found == run
    url = pq.read_table(out / "tokens/train/documents.parquet")["url"][0].as_py()
    reading = read_by(run, Forgotten(urls=(url_hash(url),)))
    assert reading.documents == 1
    reading = reading.model_copy(update={"checkpoint": "step-00000004", "steps": 1})
    path = write_settings(reading)
    assert path is not None
    shutil.move(out / "tokens", tmp_path / "before")
    shutil.copytree(tmp_path / "before", out / "tokens")
    with caplog.at_level(logging.INFO):
        other = train(str(path))
    assert other != run and list_checkpoints(run)
    assert newest_checkpoint(other).name == "step-00000002"
    assert [row["step"] for row in read_metrics(other) if "loss" in row] == [1, 2]
    assert str(run / "checkpoints/step-00000004") in (other / "config.toml").read_text()
