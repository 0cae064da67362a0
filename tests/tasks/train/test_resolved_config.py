"""The configuration that the step writes: epochs become steps, as in the engine."""

from pathlib import Path

from gpt2train.config import TrainSettings
from gpt2train.data.samples import samples_per_epoch
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, need_manifest
from tasks.train.step import resolved_config
from tests.flows.small_tokens import TRAIN, prepare_tokens


def test_epochs_become_steps(tmp_path: Path) -> None:
    root = Folder(prepare_tokens(tmp_path))
    manifests = [need_manifest(root / step) for step in ("tokens", "tokenizer")]
    settings = build(TrainSettings, TRAIN, {"epochs": 3})
    config = resolved_config(root, *manifests, settings, root / "run", 2)
    assert config.steps == -(-3 * samples_per_epoch(config) // 2) > TRAIN["steps"]
    plain = resolved_config(root, *manifests, build(TrainSettings, TRAIN), root / "run", 2)
    assert plain.steps == TRAIN["steps"]
