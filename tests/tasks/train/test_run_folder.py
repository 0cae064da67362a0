"""The run folder of a training: a name by all inputs of the weights, and nothing else."""

from pathlib import Path

from gpt2train.config import TrainSettings
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.step import Step
from tasks.train.step import run_folder

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
