"""A callback that ends the training of a flow: the flow goes on to the merge, and a second run is cached."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.settings import PretrainFlowSettings, resolve
from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.config.callbacks import CALLBACKS
from gpt2train.errors import UserError
from gpt2train.monitoring.run_record import read_record
from gpt2train.settings import read_toml
from tests.flows.test_ready_tokens import TRAIN, made, planned, trained
from tests.tasks.plugin_page import ROOT, files_of, install

__all__ = ["made"]

PAGE = "add-a-callback.md"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-in of the page, registered here and installed for the processes of a training."""
    folder = tmp_path / "installed"
    folder.mkdir()
    install(PAGE, folder)
    monkeypatch.setattr(CALLBACKS, "_entries", {})
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "early_stop", raising=False)
    importlib.import_module("early_stop")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("plugin")
def test_the_flow_goes_on_after_an_early_stop(made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpt2train")
    train: dict[str, Any] = {
        **TRAIN,
        "steps": 40,
        "callbacks": {"early_stop": {"patience": 1}},
        "optimizer": {"lr": 1e-12},  # the loss stays where it is
        "schedule": {"warmup": 1, "min_lr": 0.0},
    }
    lambada = tmp_path / "lambada.jsonl"
    lambada.write_text('{"text": "Document 1: the the the"}\n')
    flags = {"tokens": str(made / "tokens/a"), "split": "7,2,1", "train": train}
    flags |= {"score": True, "lambada": str(lambada), "evaluate": {"prompts": ["The"]}}
    manifests = trained(planned(tmp_path / "out", **flags))
    _, training, model, scores = manifests
    steps = training.outcome.facts["steps"]
    record = read_record(tmp_path / "out" / training.folder)
    assert steps < 40 and record is not None and record.early_stop is not None and record.early_stop.step == steps
    reason = "callback early_stop: the validation loss has not fallen for 1 validations"
    assert record.early_stop.reason == reason
    assert f"training finished at step {steps} of 40: {reason}" in caplog.messages
    assert read_run_config(tmp_path / "out" / training.folder / CONFIG_FILE).steps == 40
    assert (tmp_path / "out" / model.folder / "model.safetensors").is_file()
    assert [output.name for output in scores.outputs] == ["lambada.json", "samples.json"]
    assert [found for _, found in planned(tmp_path / "out", **flags).cached_steps()] == manifests


@pytest.mark.usefixtures("plugin")
def test_options_are_settings_of_a_flow(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(files_of(PAGE)["options.toml"])
    config = read_toml(tmp_path / "run.toml")["train"]["callbacks"]
    settings = resolve(PretrainFlowSettings, str(tmp_path / "run.toml"))
    assert settings.train.callbacks == config == {"early_stop": {"patience": 5}}
    with pytest.raises(UserError, match=r"callback early_stop: unknown setting 'patiense'; did you mean 'patience'\?$"):
        resolve(PretrainFlowSettings, flags={"train": {"callbacks": {"early_stop": {"patiense": 1}}}})
