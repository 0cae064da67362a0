"""The quality model: planted texts are separated, and the file, the curve and the votes are what they should be."""

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.cli import app, run_command
from gpt2train.errors import UserError
from gpt2train.quality.features import BUCKETS, MAX_CHARACTERS, features_of, gram_matrix
from gpt2train.quality.model_file import from_bytes, to_bytes
from gpt2train.quality.training import PENALTY, area, curve_of, fit, train, with_precision
from gpt2train.quality.votes import Vote, VoteFile, read_votes
from tests.gpt2train.quality.labelled_texts import planted, votes_on


@pytest.fixture(scope="module")
def texts(open_data: Path) -> list[tuple[str, bool]]:
    return planted(open_data, 160)


def test_planted_bad_texts_are_separated_from_good_ones(texts: list[tuple[str, bool]]) -> None:
    model, evaluation = train(votes_on(texts[:220], mistakes=11))
    assert evaluation.good + evaluation.bad == 220 and 95 <= evaluation.good <= 125
    assert 0.85 < evaluation.auc < 0.99 and 0 < evaluation.auc_error < 0.03
    model = with_precision(model, evaluation, 0.9)
    unseen = [(model.score(text) >= model.threshold, is_good) for text, is_good in texts[220:]]
    kept = [is_good for is_kept, is_good in unseen if is_kept]
    assert sum(kept) / len(kept) >= 0.9 and sum(kept) >= 0.8 * sum(is_good for _, is_good in unseen)


def test_order_of_the_votes_changes_no_byte(texts: list[tuple[str, bool]], tmp_path: Path) -> None:
    votes = votes_on(texts[:200])
    first, evaluation = train(votes)
    random.Random(1).shuffle(votes)
    second, again = train(votes)
    assert to_bytes(first) == to_bytes(second) and evaluation == again
    read = from_bytes(to_bytes(first), "m")
    assert [read.score(text) for text, _ in texts] == [first.score(text) for text, _ in texts]
    (tmp_path / "m").write_bytes(to_bytes(read))
    assert (tmp_path / "m").read_bytes() == to_bytes(first)


def test_labels_without_content_have_an_area_of_a_half_and_too_few_are_refused(texts: list[tuple[str, bool]]) -> None:
    few = {(99, 100): "199 votes: too few; give at least 200", (190, 10): "190 good votes and 10 bad; give at"}
    for (good, bad), message in few.items():
        with pytest.raises(UserError, match=message):
            train(votes_on([("text of a page", True)] * good + [("menu", False)] * bad))
    draw = random.Random(0)
    model, evaluation = train(votes_on([(text, draw.random() < 0.5) for text, _ in texts]))
    assert abs(evaluation.auc - 0.5) < 4 * evaluation.auc_error
    with pytest.raises(UserError, match=r"no threshold has a precision of 1\.1; the highest is 0\.\d+|1\.000, ask"):
        with_precision(model, evaluation, 1.1)


def test_the_fit_is_the_minimum_of_the_penalised_log_loss() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 5))
    is_good = x[:, 0] + draw.normal(size=40) > 0
    weights = x.T @ fit(x @ x.T, is_good)

    def loss(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -np.where(is_good, 1, -1) * (x @ w)).sum() + PENALTY / 2 * w @ w)

    gradient = -x.T @ (is_good - 1 / (1 + np.exp(-x @ weights))) + PENALTY * weights
    assert np.abs(gradient).max() < 1e-6
    assert all(loss(weights) < loss(weights + step) for step in 0.01 * np.eye(5))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_area_and_curve_are_those_by_counting(rows: list[tuple[int, bool]]) -> None:
    scores, is_good = np.array([score / 5 for score, _ in rows]), np.array([good for _, good in rows])
    if is_good.all() or not is_good.any():
        return
    pairs = [(a > b) + (a == b) / 2 for a in scores[is_good] for b in scores[~is_good]]
    assert area(scores, is_good) == pytest.approx(sum(pairs) / len(pairs))
    for point in curve_of(scores, is_good):
        kept = is_good[scores >= point.threshold]
        assert point.precision == pytest.approx(kept.mean())
        assert point.recall == pytest.approx(kept.sum() / is_good.sum())


@given(st.text(max_size=400) | st.text("的一是 ab.\n’", max_size=400))
def test_features_of_any_text_are_a_unit_vector(text: str) -> None:
    found = features_of(text)
    assert (np.diff(found.buckets) > 0).all() and (found.buckets < BUCKETS).all()
    assert float(found.values @ found.values) == pytest.approx(1 if text.strip(" \t\r\f\v") else 0, abs=1) or not text
    assert np.array_equal(found.values, features_of(text.upper().lower()).values) or not text.isascii()


def test_features_read_the_ends_of_a_long_text_and_letters_of_chinese() -> None:
    ends = "begin " * (MAX_CHARACTERS // 12 + 1) + "{}" + " final" * (MAX_CHARACTERS // 12 + 1)
    first, second = features_of(ends.format("x" * 50_000)), features_of(ends.format("y" * 60_000))
    assert np.array_equal(first.buckets, second.buckets)
    assert len(features_of("话说天下大势").buckets) == 6 + 5
    for text in ("किताब पढ़ना", "تَمَّ الأمر"):  # vowel signs and points
        assert len(features_of(text).buckets) == 2 + 1
    a, b = features_of("the cat sat"), features_of("the dog sat")
    assert gram_matrix([a, b])[0, 1] == pytest.approx(2 / 5)  # of 3 words and 2 pairs, 2 words are equal
    assert np.array_equal(features_of("“so”").values, features_of('"so"').values)
    # With a menu of languages the words, signs and line ends of a page stay the same.
    text = "Home, shop.\nA page (of words), with signs:\nand lines."
    plain, mixed = features_of(text), features_of(f"{text}\n中文")
    assert np.isin(plain.buckets, mixed.buckets).all()
    assert len(mixed.buckets) <= len(plain.buckets) + 6


def test_damaged_models_are_refused(texts: list[tuple[str, bool]]) -> None:
    for content in (b"", b"{}", b"\xff" * 100, bytes([20, *[0] * 7]) + b"[" * 20):
        with pytest.raises(UserError, match="x is no quality model; give a file that gpt2train data label or train-"):
            from_bytes(content, "x")
    model, _ = train(votes_on(texts[:200]))
    weights = model.weights.copy()
    weights[5] = np.inf
    for damaged in (replace(model, weights=weights), replace(model, threshold=2.0), replace(model, bias=float("nan"))):
        with pytest.raises(UserError, match="no quality model"):
            from_bytes(to_bytes(damaged), "x")
    whole = to_bytes(model)
    for size in (7, 100, len(whole) - 1):
        with pytest.raises(UserError, match="no quality model"):
            from_bytes(whole[:size], "x")
    with pytest.raises(UserError, match="of another version"):
        from_bytes(whole.replace(b"quality model 3", b"quality model 7"), "x")


def test_another_file_is_not_touched(tmp_path: Path) -> None:
    """A file that is given by mistake for that of the votes keeps its bytes."""
    for content in (b"notes without a line end", b"first\nsecond", b'{"id": 3}', b"\x00\x01\n\x02", b"\n"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(UserError, match="other: line 1 is no vote; remove the line"):
            VoteFile(tmp_path / "other")
        assert (tmp_path / "other").read_bytes() == content
    path = tmp_path / "votes.jsonl"  # a vote without a line end counts, as of a file that an editor wrote
    lines = [json.dumps(asdict(Vote(name, "u", None, "good", "t"))) for name in "ab"]
    path.write_text("\n".join(lines))
    assert [vote.id for vote in read_votes([path])] == ["a", "b"]
    file = VoteFile(path)
    file.add(Vote("c", "u", None, "bad", "t"))
    file.close()
    assert [vote.id for vote in read_votes([path])] == ["a", "b", "c"]


def test_votes_survive_a_kill_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "votes.jsonl"
    first = Vote("a", "u", "short_text", "good", "text\u2028\ud800")
    file = VoteFile(path)
    for vote in (first, Vote("b", "u", None, "good", "t"), replace(first, vote="bad"), Vote("b", "u", None, None, "t")):
        file.add(vote)
    with pytest.raises(UserError, match="is open in another gpt2train data label; end that one first"):
        VoteFile(path)
    file.close()
    with path.open("ab") as out:
        out.write(b'{"id": "c", "url"')  # killed within a line
    again = VoteFile(path)
    assert list(again.votes.values()) == read_votes([path]) == [replace(first, vote="bad")]
    again.add(Vote("d", "u", None, "bad", "t"))
    again.close()
    assert [vote.id for vote in read_votes([path, path])] == ["a", "d"]
    with path.open("ab") as out:
        out.write(b'{"id": "c", "vote": "great"}\n')
    with pytest.raises(UserError, match=r"votes\.jsonl: line 6 is no vote; remove the line"):
        read_votes([path])


def test_the_command_trains_from_the_file(
    texts: list[tuple[str, bool]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = VoteFile(tmp_path / "votes.jsonl")
    for vote in votes_on(texts[:200]):
        file.add(vote)
    file.close()
    given = ["data", "train-quality", str(file.path), "--output", str(tmp_path / "m")]
    assert run_command(app, [*given, "--precision", "0.95"]) == 0
    shown = capsys.readouterr().out
    assert "100 good and 100 bad votes\nAUC 1.000 ± 0.000" in shown and f"model: {tmp_path}/m" in shown
    assert from_bytes((tmp_path / "m").read_bytes(), "m").about["precision"] >= 0.95
    assert run_command(app, given) == 0  # over the older model
    votes = file.path.read_bytes()
    monkeypatch.setattr("gpt2train.quality.training.train", None)  # the output is looked at before
    assert run_command(app, [*given[:3], "--output", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder; give --output as a file" in capsys.readouterr().err
    assert run_command(app, [*given[:3], "--output", str(file.path)]) == 2
    assert "votes.jsonl already exists and is no quality model" in capsys.readouterr().err
    assert file.path.read_bytes() == votes
    assert run_command(app, ["data", "train-quality", str(tmp_path / "none"), "--output", "m"]) == 2
    assert "cannot read" in capsys.readouterr().err
