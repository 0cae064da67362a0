"""The filter by FineWeb-Edu's classifier, with small random models of its kind."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.store.folder import Folder
from tasks.clean.filters.filter_chain import filter_files
from tasks.clean.filters.fineweb_edu import score_of
from tasks.clean.filters.registry import LocalModel
from tasks.clean.step import CleanSettings, clean
from tests.tasks.clean.test_clean import ENGLISH, GERMAN, documents
from tests.tasks.corpus import Inline, rejected_of, rows_of

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def saved(folder: Path, labels: int = 1, **config: Any) -> Path:
    """A BERT with one layer and pieces of single letters, as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    import torch

    torch.manual_seed(1)
    folder.mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, **config}
    sizes |= {"vocab_size": len(pieces), "num_labels": labels, "max_position_embeddings": 64, "initializer_range": 1.0}
    transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


def settings_with(model: Path, **more: object) -> CleanSettings:
    filters = {"fineweb_edu": {"model": str(model), **more}}
    return build(CleanSettings, {"language": {"keep": ["any"]}, "filters": filters})


def expected_score(text: str, folder: Path) -> float:
    """Score as in the code on FineWeb-Edu's model card."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt", padding="longest", truncation=True)
    with torch.no_grad():
        found = AutoModelForSequenceClassification.from_pretrained(folder)(**inputs).logits.squeeze(-1).float()
    return float(found.item())


def test_texts_with_a_low_score_are_rejected(tmp_path: Path, model: Path) -> None:
    low, high = sorted([ENGLISH, GERMAN], key=lambda text: expected_score(text, model))
    between = (expected_score(low, model) + expected_score(high, model)) / 2
    root = Folder(tmp_path / "out")
    source = documents(root, [low, high])
    with Inline(workers=1) as runner:
        made = clean(root, source, settings_with(model, threshold=between), runner)
        assert [row["id"] for row in rows_of(root, made)] == ["0-1"] and "transformers" in made.versions
        [rejected] = rejected_of(root, made)
        assert rejected["reason"] == "fineweb_edu_low"
        assert rejected["detail"].startswith(f"{expected_score(low, model):.3f}, at least ")
        model = model.rename(tmp_path / "moved")  # the content counts, not the name
        assert clean(root, source, settings_with(model, threshold=between), runner) == made
        assert runner.skipped == {"clean"}
        other = saved(tmp_path / "other", hidden_size=16)
        assert clean(root, source, settings_with(other, threshold=between), runner).fingerprint != made.fingerprint


def test_scores_are_those_of_transformers(model: Path) -> None:
    for text in (ENGLISH, GERMAN, "a", "", "a\0b \u2028", "word " * 500):
        assert score_of(text, LocalModel(str(model), "1")) == pytest.approx(expected_score(text, model), abs=6e-4)


@pytest.mark.slow
def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from benchmarks import fineweb_edu

    monkeypatch.setattr("sys.argv", ["fineweb_edu", "--rounds", "1"])
    monkeypatch.setattr(fineweb_edu, "LENGTHS", (5, 50))
    fineweb_edu.main()
    assert re.search(r"^5 words: \d+ ms\n50 words: \d+ ms$", capsys.readouterr().out, re.MULTILINE)


def test_what_is_no_such_model_is_named(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    def refused(message: str, folder: Path = model) -> None:
        with pytest.raises(UserError, match=message):
            filter_files(settings_with(folder).filters)

    refused(r"none is no folder .* --clean\.filters\.fineweb_edu\.model", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    refused(r"no file in .* ends in .json, .model, .safetensors, .txt; .*fineweb_edu", tmp_path / "empty")
    refused("three has 3 labels; give a classifier with one score", saved(tmp_path / "three", labels=3))
    weights = model / "model.safetensors"
    content, tensors = weights.read_bytes(), load_file(weights)
    others = {name: value for name, value in tensors.items() if name != "classifier.weight"}
    save_file(others, weights, {"format": "pt"})
    refused(r"model has no weights classifier\.weight")
    save_file(tensors | {"classifier.weight": torch.zeros(1, 5)}, weights)
    refused("model cannot be read as a model of transformers: ")
    weights.write_bytes(content[: len(content) // 2])
    refused("model cannot be read as a model of transformers: ")
    weights.rename(model / "pytorch_model.bin")  # a pickle
    refused("cannot be read .* safetensors")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(r"needs the extra .edu.: pip install 'gpt2train\[edu\]'")
