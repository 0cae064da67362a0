"""A data step of a plug-in: changed texts, rejections, place, fingerprint."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError, UserError
from gpt2train.settings import Settings
from gpt2train.store.folder import Folder
from tasks.clean.filters.verdict import Rejection
from tasks.core.reject_limits import LimitSettings
from tasks.data_steps.registry import DATA_STEPS, DataStep, limit_settings, settings_groups, steps_after
from tasks.data_steps.step import function_of
from tests.tasks.corpus import Inline, documents_of, rejected_of, row, rows_of


class CutSettings(Settings):
    word: str = "STOP"
    """The word."""


def cut(document: dict[str, Any], settings: CutSettings) -> str | Rejection:
    if document["text"].startswith("bad"):
        return Rejection("bad_start", "bad, another word expected")
    return str(document["text"].partition(settings.word)[0])


STEP = DataStep("cut_texts", CutSettings, cut, after="dedup", limit=0.25)
TEXTS = ["one two three", "one two STOP three", "bad one", "STOP", "four five"]


def test_texts_are_changed_and_rejected_and_rows_keep_their_identity(tmp_path: Path) -> None:
    root, function, rows = Folder(tmp_path), function_of(STEP), [row(text) for text in TEXTS]
    documents = documents_of(root, rows, per_shard=2)
    with Inline(1) as runner:
        done = runner.run_step(function, root, documents, CutSettings())
        assert runner.run_step(function, root, documents, CutSettings()) == done and runner.skipped == {"cut_texts"}
        kept, rejected = rows_of(root, done), rejected_of(root, done)
        other = runner.run_step(function, root, documents, CutSettings(word="two"))
    assert done.folder == "data_steps/cut_texts" and done.fingerprint != other.fingerprint
    assert done.outcome.reasons == {"bad_start": 1, "too_short": 1} and done.outcome.facts == {"changed": 2}
    assert [found["text"] for found in kept] == ["one two three", "one two ", "four five"]
    assert [found["id"] for found in kept] == [rows[number]["id"] for number in (0, 1, 4)]
    assert [found["tokens"] for found in kept] == [3, 3, 2]  # the space at the end is a piece
    assert [found["reason"] for found in rejected] == ["bad_start", "too_short"]


def no_verdict(document: dict[str, Any], settings: CutSettings) -> Any:
    return False  # as a filter of datatrove


def test_another_result_than_a_text_or_a_rejection_is_named(tmp_path: Path) -> None:
    step = DataStep("no_verdict", CutSettings, no_verdict)
    root = Folder(tmp_path)
    with Inline(1) as runner, pytest.raises(RunError, match=r"test_step.no_verdict returned bool; return the text to"):
        runner.run_step(function_of(step), root, documents_of(root, [row("one")]), CutSettings())


class NoDefaultSettings(Settings):
    word: str


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "data step cut_texts: its DataStep has the name 'other'; give both the same"),
        ({"after": "texts"}, "after='texts'; choose clean, decontaminate, dedup"),
        ({"limit": 50}, "limit=50; give a share from 0 to 1"),
        ({"process": lambda d, s: ""}, "workers cannot import <function <lambda>.*; put it at the top"),
        ({"settings": NoDefaultSettings}, "word: field required; give every field a"),
    ],
)
def test_a_wrong_registration_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DATA_STEPS.register("cut_texts", dataclasses.replace(STEP, **changes))
    assert "cut_texts" not in list(DATA_STEPS)


def test_registration_adds_settings_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_groups(__name__) is Settings and limit_settings(__name__) is LimitSettings
    monkeypatch.setattr(DATA_STEPS, "_entries", {})
    DATA_STEPS.register("cut_texts", STEP)
    assert steps_after("dedup") == [STEP] and steps_after("clean") == []
    assert settings_groups(__name__)().model_dump() == {"cut_texts": {"word": "STOP"}}
    limits = limit_settings(__name__)()
    assert limits.share("cut_texts") == 0.25 and limits.share("clean") == 0.95
