"""Comparisons of losses: the modern recipe, products in 8 bits, paraphrases."""

import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks import corpora, fp8
from benchmarks.modern import HORIZONS, SEEDS, SIZES, Arm, Bench, crossing
from benchmarks.paraphrases import ALIKE, DIFFERENT, Editor, overlap, rule_accuracy

SIZE = SIZES["nano"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, SIZE, "nano")


def finish(bench: Bench, arms: Iterator[Arm], loss: Callable[[Arm], float]) -> list[Arm]:
    """Finish trainings without training: their losses are those of a function."""
    done = []
    for arm in arms:
        if arm.key not in bench.finished():
            done.append(arm)
            row = {"key": arm.key, "loss": loss(arm), "cpu_seconds": 1}
            with bench.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return done


@pytest.mark.parametrize("off", [-5.3, -0.4, 0.4, 3.7])
def test_a_search_ends_when_the_best_rate_lies_between_worse_ones(bench: Bench, off: float) -> None:
    best = SIZE.rate * 2**off
    search = bench.gpt2_search()
    done = finish(bench, search.arms(), lambda arm: abs(math.log2(arm.rate / best)) + arm.seed)
    assert search.is_bracketed and abs(math.log2(search.best / best)) <= 0.5
    rates = {arm.rate for arm in done}
    assert {search.best / 2, 2 * search.best} <= rates
    assert {(arm.rate, arm.seed) for arm in done} == {(rate, seed) for rate in rates for seed in SEEDS}
    assert len(done) == len(rates) * len(SEEDS) and len(rates) <= 4 + abs(off)


@pytest.mark.parametrize("needed", [0.07, 0.6])
def test_the_share_of_the_tokens_is_found_between_two_tuned_horizons(
    bench: Bench, needed: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe whose loss falls with the logarithm of its tokens, with a best rate of twice its rule's."""

    def loss(arm: Arm) -> float:
        if arm.name != "modern":
            return 4 + abs(math.log2(arm.rate / SIZE.rate))
        rule = bench.rules(arm.share)
        return 4 - math.log(arm.share / needed) + abs(math.log2(arm.rate / (2 * rule["optimizer"]["lr"])))

    done = finish(bench, bench.wanted(ablations=False), loss)
    shares = sorted({arm.share for arm in done if arm.name == "modern"})
    assert any(low < needed < high for low, high in itertools.pairwise(shares))
    assert all(len([arm for arm in done if arm.share == share]) >= 3 * len(SEEDS) for share in shares)
    assert set(shares) <= set(HORIZONS)
    bench.show()
    assert f"share of GPT-2's: {needed:.3f} +- 0.000" in capsys.readouterr().out


def test_both_sides_have_the_same_warm_down(bench: Bench) -> None:
    ours, theirs = (bench.config(arm) for arm in (bench.recipe(1, 1), bench.gpt2(1e-3, 1)))
    for name in ("kind", "decay_fraction", "decay_shape", "min_lr", "decay_steps"):
        assert getattr(ours.schedule, name) == getattr(theirs.schedule, name)
    assert theirs.schedule.min_lr == 0
    assert (ours.steps, ours.batch, ours.seed) == (theirs.steps, theirs.batch, theirs.seed)


def test_what_is_not_finished_is_not_claimed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.show()
    finish(bench, iter([bench.gpt2(SIZE.rate, seed) for seed in SEEDS]), lambda _: 4.0)
    bench.show()
    assert "tokens to" not in capsys.readouterr().out
    assert replace(bench, name="other").finished() == {}


def test_a_crossing_is_on_the_line_through_the_nearest_points() -> None:
    points = [(0.1, 5.0), (0.2, 4.0), (0.4, 3.5)]
    assert crossing(points, 4.0) == pytest.approx(0.2)
    assert crossing(points, 4.5) == pytest.approx(0.1 * 2**0.5)
    assert crossing(points, 3.75) == pytest.approx(0.2 * 2**0.5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_comparison_trains_each_arm_once(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(corpora, "DATA", real_data)
    monkeypatch.setattr(sys, "argv", ["fp8", "--output", str(tmp_path), "--steps", "2", "--seeds", "1"])
    shown = []
    for _ in range(2):  # the second time nothing is trained
        fp8.main()
        dist.destroy_process_group()
        shown.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("seed 1, ")])
    assert shown[0] == shown[1] and len(shown[0]) == len(fp8.ARMS)
    assert shown[0][1].endswith("+0.0000 +0.0000") and not shown[0][2].endswith("+0.0000 +0.0000")


WORDS = [f"word{number}" for number in range(200)]
DOCUMENTS = [[" ".join(random.Random(n * 9 + m).sample(WORDS, 12)) for m in range(4)] for n in range(40)]


def editor(seed: int = 1) -> Editor:
    return Editor((sentence for document in DOCUMENTS for sentence in document), seed)


def test_a_seed_gives_the_same_edits() -> None:
    one, again, other = (editor(seed).with_copies(DOCUMENTS[0]) for seed in (1, 1, 2))
    assert one == again != other
    assert [line for line in one.split("\n") if line in DOCUMENTS[0]][:1] == DOCUMENTS[0][:1]


def test_the_strength_of_an_edit_is_the_share_of_lost_words() -> None:
    chosen, sentence = editor(), " ".join(WORDS[:32])
    lost = [len(set(sentence.split()) - set(chosen.edited(sentence, 0.3).split())) / 32 for _ in range(200)]
    assert 0.27 < sum(lost) / len(lost) < 0.33
    assert sorted(chosen.edited(sentence, 0.0).split()) == sorted(sentence.split())


def test_pairs_are_labelled_by_their_overlap() -> None:
    pairs = editor().overlaps(DOCUMENTS, 60)
    assert len(pairs) == 60 and sum(same for same, _, _ in pairs) == 30
    assert all(overlap(a, b) >= ALIKE if same else overlap(a, b) < DIFFERENT for same, a, b in pairs)
    copies = editor().copies(DOCUMENTS, 100)
    scores = [overlap(a, b) for same, a, b in copies if same]
    assert 0.6 < sum(scores) / len(scores) < 0.9
    assert all([a, b] in [d[i : i + 2] for d in DOCUMENTS for i in range(3)] for same, a, b in copies if not same)


def test_the_rule_takes_its_threshold_from_the_training_rows() -> None:
    rows = [(1, "a b c d", "a b c e"), (0, "a b c d", "a f g h")]
    assert rule_accuracy(rows, rows) == 1.0
    assert rule_accuracy(rows, [(0, "a b c d", "a b c d")]) == 0.0
