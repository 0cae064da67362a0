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
from tests.gpt2train.parallel.pipeline_cases import HELD_OUT, SAMPLES, STEPS, batch, counted, settings

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


def gradients_of(model: GPT2) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The same run in its simplest form: one model, torch's own AdamW and clipping."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = settings({})
    model = initialise(GPT2(config.shape), config.seed)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    own = config.optimizer
    groups = [{"params": matrices, "weight_decay": own.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=own.lr, betas=(own.beta1, own.beta2), eps=own.eps)
    seen: dict[str, Any] = {"loss": [], "norm": []}
    some = batch(range(SAMPLES // 2), documents=True)
    (model(some.tokens, some.targets, **some.extra) / counted(range(SAMPLES // 2))).backward()
    seen["fewer"] = gradients_of(model)
    for step in range(STEPS):
        numbers = range(step * SAMPLES, (step + 1) * SAMPLES)
        whole = batch(numbers)
        loss = model(whole.tokens, whole.targets) / counted(numbers)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            seen["gradients"] = gradients_of(model)
        seen["loss"].append(loss.item())
        seen["norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), own.max_grad_norm).item())
        optimizer.step()
    seen["weights"] = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    held_out = batch(range(10_000, 10_000 + HELD_OUT))
    with torch.no_grad():
        seen["held_out"] = [initialise(GPT2(config.shape), config.seed)(held_out.tokens, held_out.targets).item()]
        seen["held_out"].append(model(held_out.tokens, held_out.targets).item())
    torch.set_num_threads(threads)
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


@pytest.mark.parametrize(
    ("how", "line"),
    [
        pytest.param("raise", "error: rank 1: ValueError: broken on purpose", marks=pytest.mark.exhaustive),
        pytest.param("die", "error: rank 1 on ", marks=pytest.mark.exhaustive),
    ],
)
def test_a_failing_stage_ends_the_job_in_one_line(how: str, line: str) -> None:
    code, _, err = finish(start(str(HERE / "failing_stage.py"), how))
    assert code == 1
    assert err.startswith(line) and len(err.splitlines()) == 1, err


@pytest.mark.slow
def test_differing_copies_of_the_embedding_are_not_saved() -> None:
    code, _, err = finish(start(str(HERE / "failing_stage.py"), "drift"))
    assert code == 1
    assert "RunError: the copies of wte.weight on the first and the last pipeline stage differ" in err
