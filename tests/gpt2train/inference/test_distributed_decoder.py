"""Distributed decoding: every call equals that of one process, long idle times, memory of each process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.convert.huggingface import read_model
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.parallel.small_model_folder import SHAPE, write_folder

RANKS = Path(__file__).parents[1] / "parallel" / "run_cases.py"
Findings = Callable[[str], list[dict[str, Any]]]
LAYOUTS = [(4, 1), (2, 2), (1, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("decode"))


@pytest.fixture(scope="module")
def findings_of_two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Results of each case on two tensor-parallel processes."""
    names = [f"{name} '{folder}' 2 1" for name in ("equal", "scored", "lambada", "over")]
    return run(folder, tmp_path_factory, 2, names)


@pytest.fixture(scope="module")
def findings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    names = [f"{name} '{folder}' {tp} {pp}" for name in ("equal", "scored", "lambada") for tp, pp in LAYOUTS]
    return run(folder, tmp_path_factory, 4, [*names, f"idle '{folder}' 2 2"])


def run(folder: Path, temporary: pytest.TempPathFactory, processes: int, cases: list[str]) -> Findings:
    output = temporary.mktemp("found") / "found.json"
    names = [f"decode_cases.{case}" for case in cases]
    run_ranks(RANKS, str(output), *names, processes=processes)
    found = json.loads(output.read_text())
    return lambda case: found[f"decode_cases.{case.split()[0]} '{folder}' {case.split(maxsplit=1)[1]}"]


def check_answers(findings: Findings, layout: str) -> None:
    """Hold logits of every decoder call, scores without logits and LAMBADA against those of one process."""
    calls, scored, lambada = (findings(f"{name} {layout}")[0] for name in ("equal", "scored", "lambada"))
    assert calls["sizes"] and calls["lengths"] and calls["dtype"] == "torch.float32", calls
    assert calls["difference"] < 2e-5 * calls["scale"], calls
    assert scored["difference"] < 1e-4 and scored["greedy"] and 0 < scored["likeliest"] < scored["of"], scored
    assert lambada["same"] and lambada["difference"] < 1e-4 and lambada["passages"] > lambada["correct"] > 0, lambada


def test_two_tensor_parallel_processes_answer_as_one(findings_of_two: Findings) -> None:
    check_answers(findings_of_two, "2 1")
    assert "a newer one of the same model" in findings_of_two("over 2 1")[0]["said"]


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
def test_four_processes_answer_as_one(tp: int, pp: int, findings: Findings) -> None:
    check_answers(findings, f"{tp} {pp}")


@pytest.mark.slow
def test_each_process_holds_only_its_shard(folder: Path, findings: Findings) -> None:
    whole = sum(p.numel() for p in read_model(folder).parameters())
    tied = SHAPE.padded_vocab * SHAPE.hidden  # the first and the last stage have one each
    for tp, pp in LAYOUTS:
        parts = [found["parameters"] for found in findings(f"equal {tp} {pp}")]
        norms = (2 * 2 + 1 + 4) * SHAPE.hidden * SHAPE.layers  # norms and the biases of proj and down: whole on all
        most = (whole + (tied if pp > 1 else 0)) / 4 + norms + 2 * SHAPE.hidden + SHAPE.context * SHAPE.hidden
        assert sum(parts) >= whole and max(parts) <= most + (tied if tp == 1 else 0), (tp, pp, parts, whole)


@pytest.mark.slow
def test_an_idle_model_sleeps_longer_than_its_timeout(findings: Findings) -> None:
    found = findings("idle 2 2")
    assert found[0]["answers"] == [1, SHAPE.vocab]
    assert all(one["seconds"] < 1 for one in found), found  # of six


@pytest.mark.parametrize(
    ("tp", "pp", "world", "said"),
    [
        (2, 2, 3, "--tp 2 x --pp 2 = 4 processes, but there are 3"),
        (3, 1, 3, "--tp 3 does not divide the size 32 of"),
        (8, 1, 8, "--tp 8 is more than the model's 4 heads; for this model it can be 1, 2, 4"),
        (1, 5, 5, "--pp 5 stages, but the model has 4 layers"),
        (0, 1, 1, "both must be at least 1"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_with_the_calculation(tp: int, pp: int, world: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Layout.of_model(SHAPE, tp, pp, world)
    with pytest.raises(UserError, match="--tp 256 does not divide 128"):
        Layout.of_model(Shape(300, 2, 256, 512, 32), 256, 1, 256)
