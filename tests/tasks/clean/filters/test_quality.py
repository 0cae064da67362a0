"""The filter by a quality model, in the clean step."""

from pathlib import Path

import pytest

from gpt2train.errors import UserError
from gpt2train.quality.model_file import to_bytes
from gpt2train.quality.training import train, with_precision
from gpt2train.settings import build
from gpt2train.store.folder import Folder
from tasks.clean.step import CleanSettings, clean
from tests.gpt2train.quality.labelled_texts import planted, votes_on
from tests.tasks.clean.test_clean import documents
from tests.tasks.corpus import Inline, rejected_of, rows_of


def settings_with(model: Path, **more: float) -> CleanSettings:
    return build(CleanSettings, {"filters": {"quality": {"model": str(model), **more}}})


def test_texts_below_the_threshold_are_rejected(open_data: Path, tmp_path: Path) -> None:
    texts = planted(open_data, 130)
    model, evaluation = train(votes_on(texts[:200]))
    model = with_precision(model, evaluation, 0.95)
    path = tmp_path / "m.safetensors"
    path.write_bytes(to_bytes(model))
    root = Folder(tmp_path / "out")
    source = documents(root, [text for text, _ in texts[200:]])
    with Inline(workers=1) as runner:
        made = clean(root, source, settings_with(path), runner)
        kept = {row["id"] for row in rows_of(root, made)}
        rejected = rejected_of(root, made)
        low = [row for row in rejected if row["reason"] == "quality_low"]
        good = {f"0-{number}" for number, (_, is_good) in enumerate(texts[200:]) if is_good}
        assert len(kept & good) >= 0.9 * len(kept) and len(low) >= 20
        assert low[0]["detail"].endswith(f", at least {model.threshold:g} expected")
        assert float(low[0]["detail"].split(",")[0]) < model.threshold
        assert made.parameters["filters"]["quality"] == {"threshold": None}

        path = path.rename(tmp_path / "moved")  # the content counts, not the name
        assert clean(root, source, settings_with(path), runner) == made and runner.skipped == {"clean"}
        assert len(rows_of(root, clean(root, source, settings_with(path, threshold=0.0), runner))) > len(kept)
        path.write_bytes(to_bytes(with_precision(model, evaluation, 0.5)))
        assert clean(root, source, settings_with(path), runner).fingerprint != made.fingerprint

        path.write_bytes(b"nothing")
        with pytest.raises(UserError, match="moved is no quality model; give a file that gpt2train data label"):
            clean(root, source, settings_with(path), runner)
        with pytest.raises(UserError, match=r"cannot read .*none: .*; check the path"):
            clean(root, source, settings_with(tmp_path / "none"), runner)
