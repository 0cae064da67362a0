"""Pipelines under real torchrun jobs: the same numbers as a plain model in one process."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import finish, start
from tests.gpt2train.parallel.pipeline_cases import SAMPLES, batch, counted, settings

pytestmark = pytest.mark.slow  # the fast suite has one pipeline: test_train.py

HERE = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = {
    "1f1b": {"parallel": {"pp": 2}},
    "gpipe": {"parallel": {"pp": 2, "schedule": "gpipe"}},
    "interleaved": {"parallel": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}},
    "recomputed": {"parallel": {"pp": 2, "activation_checkpointing": "full"}},
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Results of each rank, by case."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "cases.json").write_text(json.dumps(CASES))
    run_ranks(HERE / "pipeline_cases.py", str(folder), str(folder / "cases.json"))
    return {name: [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)] for name in CASES}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The same gradients of one model."""
    config = settings({})
    model = initialise(GPT2(config.shape), config.seed)
    seen: dict[str, Any] = {}
    for name, samples in (("fewer", SAMPLES // 2), ("gradients", SAMPLES)):
        one = batch(range(samples), documents=name == "fewer")
        model.zero_grad()
        (model(one.tokens, one.targets, **one.extra) / counted(range(samples))).backward()
        seen[name] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return seen


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of an element, relative to the largest element."""
    assert set(ours) == set(theirs)
    largest = max(float(tensor.abs().max()) for tensor in theirs.values())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) / largest


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_those_of_one_process(case: str, plain: dict[str, Any], ranks: dict[str, Any]) -> None:
    first, last = ranks[case]
    assert torch.equal(first["gradients"]["wte.weight"], last["gradients"]["wte.weight"])
    assert difference(first["gradients"] | last["gradients"], plain["gradients"]) < 1e-6
    # torch's own scaling would divide the gradients of the first time again in the second.
    doubled = {name: 2 * gradient for name, gradient in plain["gradients"].items()}
    assert difference(first["twice"] | last["twice"], doubled) < 1e-6
    # Half as many micro-batches as before, with positions and documents that every stage must see.
    assert difference(first["fewer"] | last["fewer"], plain["fewer"]) < 1e-6


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("how", "line"), [("raise", "error: rank 1: ValueError: broken on purpose"), ("die", "error: rank 1 on ")]
)
def test_a_failing_stage_ends_the_job_in_one_line(how: str, line: str) -> None:
    code, _, err = finish(start(str(HERE / "failing_stage.py"), how))
    assert code == 1
    assert err.startswith(line) and len(err.splitlines()) == 1, err


def test_differing_copies_of_the_embedding_are_not_saved() -> None:
    code, _, err = finish(start(str(HERE / "failing_stage.py"), "drift"))
    assert code == 1
    assert "RunError: the copies of wte.weight on the first and the last pipeline stage differ" in err
