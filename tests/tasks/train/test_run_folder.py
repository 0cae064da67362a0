"""The run folder of a training: a name by all inputs of the weights, and a configuration in steps."""

from pathlib import Path

from gpt2train.config import TrainSettings
from gpt2train.data.samples import samples_per_epoch
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, Manifest, Outcome, need_manifest
from tasks.core.step import Step
from tasks.train.step import resolved_config, run_folder
from tests.flows.small_tokens import TRAIN, prepare_tokens

SETTINGS = TrainSettings()


def make(root: Folder, step: str, version: int, **files: bytes) -> Manifest:
    """A finished step with these files; another version simulates another release of a library."""
    folder = root / f"{step}-{version}"
    for name, content in files.items():
        folder.write_bytes(name.replace("_", "."), content)
    outcome = Outcome(outputs=tuple(folder.record(name.replace("_", ".")) for name in files))
    work = Step(root, step, version=version, parameters={}, inputs={}, folder=folder.url.rpartition("/")[2])
    return work.commit(outcome)


def test_equal_tokens_of_other_releases_are_the_same_run(tmp_path: Path) -> None:
    """A library that is upgraded repeats the data steps; a training on the same tokens resumes."""
    root = Folder(tmp_path)
    vocabulary = make(root, "tokenizer", 1, vocab_json=b"{}")
    tokens = make(root, "tokenize", 1, tokens_bin=b"1", tokens_idx=b"2", sidecar_parquet=b"by an old writer")
    again = make(root, "tokenize", 2, tokens_bin=b"1", tokens_idx=b"2", sidecar_parquet=b"by a new writer")
    assert tokens.identity != again.identity
    folder = run_folder(tokens, vocabulary, SETTINGS, "tiny")
    assert folder == run_folder(again, make(root, "tokenizer", 2, vocab_json=b"{}"), SETTINGS, "tiny")
    others = [
        run_folder(make(root, "tokenize", 3, tokens_bin=b"3", tokens_idx=b"2"), vocabulary, SETTINGS, "tiny"),
        run_folder(tokens, make(root, "tokenizer", 3, vocab_json=b"{}\n"), SETTINGS, "tiny"),
        run_folder(tokens, vocabulary, SETTINGS.model_copy(update={"seed": SETTINGS.seed + 1}), "tiny"),
    ]
    assert len({folder, *others}) == 4


def test_epochs_become_steps(tmp_path: Path) -> None:
    root = Folder(prepare_tokens(tmp_path))
    manifests = [need_manifest(root / step) for step in ("tokens", "tokenizer")]
    settings = build(TrainSettings, TRAIN, {"epochs": 3})
    config = resolved_config(root, *manifests, settings, root / "run", 2)
    assert config.steps == -(-3 * samples_per_epoch(config) // 2) > TRAIN["steps"]
    plain = resolved_config(root, *manifests, build(TrainSettings, TRAIN), root / "run", 2)
    assert plain.steps == TRAIN["steps"]
