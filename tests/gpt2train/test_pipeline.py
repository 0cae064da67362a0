"""Pipelines under real torchrun jobs: the same numbers as a plain model in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from tests.gpt2train import pipelines
from tests.gpt2train.pipelines import HELD_OUT, SAMPLES, STEPS, batch, counted, settings

SECONDS = 240.0  # for one job, on a busy machine
TWO = {
    "1f1b": {"parallel": {"pp": 2}},
    "gpipe": {"parallel": {"pp": 2, "schedule": "gpipe"}},
    "interleaved": {"parallel": {"pp": 2, "schedule": "interleaved", "stages": 2}},
}
FOUR = {
    "four": {"parallel": {"pp": 4}},
    **{f"zero {zero}": {"parallel": {"pp": 2, "zero": zero}} for zero in range(4)},
    "interleaved zero 3": {"parallel": {"pp": 2, "schedule": "interleaved", "stages": 2, "zero": 3}},
}


def torchrun(processes: int, *arguments: str) -> None:
    command = [sys.executable, "-m", "gpt2train.launch", "--parent", str(os.getpid()), "--", "--standalone"]
    command += ["--nproc-per-node", str(processes), str(Path(pipelines.__file__)), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def of_ranks(folder: Path, cases: dict[str, Any], processes: int) -> dict[str, list[dict[str, Any]]]:
    """What each rank of a job wrote down, by case."""
    (folder / "cases.json").write_text(json.dumps(cases))
    torchrun(processes, str(folder), str(folder / "cases.json"))
    return {name: [torch.load(folder / f"{name}-{rank}.pt") for rank in range(processes)] for name in cases}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The same run by the textbook: one model, torch's own AdamW and clipping."""
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
    for step in range(STEPS):
        numbers = range(step * SAMPLES, (step + 1) * SAMPLES)
        whole = batch(list(numbers))
        loss = model(whole.tokens, whole.targets) / counted(numbers)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            seen["gradients"] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        seen["loss"].append(loss.item())
        seen["norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), own.clip).item())
        optimizer.step()
    seen["weights"] = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    held_out = batch(list(range(10_000, 10_000 + HELD_OUT)))
    with torch.no_grad():
        seen["held_out"] = [initialise(GPT2(config.shape), config.seed)(held_out.tokens, held_out.targets).item()]
        seen["held_out"].append(model(held_out.tokens, held_out.targets).item())
    torch.set_num_threads(threads)
    return seen


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return of_ranks(tmp_path_factory.mktemp("two"), TWO, 2)


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


@pytest.mark.parametrize("case", TWO)
def test_two_stages_train_like_one_model(
    case: str, plain: dict[str, Any], two: dict[str, list[dict[str, Any]]]
) -> None:
    ranks = two[case]
    assert min(plain["norm"]) > 0.5  # clipping works in every step
    for seen in ranks:
        assert seen["loss"] == pytest.approx(plain["loss"], rel=1e-5)
        assert seen["norm"] == pytest.approx(plain["norm"], rel=1e-4)
        assert seen["held_out"][0] == pytest.approx(plain["held_out"][0], rel=1e-6)
        assert seen["held_out"][-1] == pytest.approx(plain["held_out"][-1], rel=1e-5)
    gradients = ranks[0]["gradients"] | ranks[1]["gradients"]
    assert set(gradients) == set(plain["gradients"])
    floor = max(float(gradient.abs().max()) for gradient in plain["gradients"].values())
    assert largest_difference(gradients, plain["gradients"]) < 1e-5 * floor
    assert largest_difference(ranks[0]["weights"] | ranks[1]["weights"], plain["weights"]) < 1e-3
