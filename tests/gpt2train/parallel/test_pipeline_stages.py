"""Pipelines: balanced stages, which equal the whole model, also as real jobs."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt2train.config import preset
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.parallel.pipeline_stages import head_weight, split_layers, stage_layers
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import finish, start
from tests.gpt2train.parallel.pipeline_cases import SAMPLES, batch, counted, settings

SHAPE = Shape(vocab=128, layers=5, heads=2, hidden=32, context=16)


@given(layers=st.integers(1, 9), stages=st.integers(1, 5), first=st.sampled_from([0, 0.3, 2]), last=st.floats(0, 6))
def test_the_division_is_the_best_of_all(layers: int, stages: int, first: float, last: float) -> None:
    if layers < stages:
        with pytest.raises(UserError, match=f"{layers} layers do not fill {stages} pipeline stages"):
            split_layers(layers, stages, first, last)
        return

    def weights(counts: list[int]) -> list[float]:
        extra = [first, *[0] * (stages - 1)]
        extra[-1] += last
        return [count + more for count, more in zip(counts, extra, strict=True)]

    def cost(counts: list[int]) -> tuple[float, float]:
        return max(weights(counts)), sum(weight**2 for weight in weights(counts))

    cuts = itertools.combinations(range(1, layers), stages - 1)
    every = [[b - a for a, b in itertools.pairwise((0, *cut, layers))] for cut in cuts]
    heaviest = min(cost(counts)[0] for counts in every)
    most_even = min(cost(counts)[1] for counts in every)
    found = split_layers(layers, stages, first, last)
    assert [layer for part in found for layer in part] == list(range(layers))
    assert cost([len(part) for part in found]) == pytest.approx((heaviest, most_even))


def test_the_output_layer_counts_as_layers() -> None:
    sizes = {key: preset("117m")["model"][key] for key in ("layers", "hidden", "context")}
    shape = Shape(vocab=50_257, heads=12, **sizes)
    assert head_weight(shape) == pytest.approx(4.9, abs=0.2)
    assert [len(part) for part in stage_layers(shape, 2)] == [8, 4]
    assert [len(part) for part in stage_layers(shape, 4)] == [3, 4, 4, 1]
    assert [len(part) for part in split_layers(24, 4)] == [6, 6, 6, 6]


def test_the_stages_compute_the_whole_model() -> None:
    whole = initialise(GPT2(SHAPE), 3)
    parts = [initialise(GPT2(SHAPE).keep_layers(layers), 3) for layers in (range(2), range(2, 4), range(4, 5))]
    tokens = torch.randint(0, SHAPE.vocab, (3, SHAPE.context), generator=torch.Generator().manual_seed(0))
    for targets in (None, tokens):
        x = tokens
        for part in parts:
            x = part(x, targets=targets)
        assert torch.equal(x, whole(tokens, targets=targets))
    named = [dict(part.named_parameters()) for part in parts]
    assert set().union(*named) == set(dict(whole.named_parameters()))
    assert set(named[0]) & set(named[2]) == {"wte.weight"} and not set(named[1]) & (set(named[0]) | set(named[2]))
    assert torch.equal(named[0]["wte.weight"], named[2]["wte.weight"])


@pytest.mark.exhaustive
def test_a_training_without_a_pipeline_does_not_import_it() -> None:
    program = "import sys, gpt2train.train; print('torch.distributed.pipelining' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


HERE = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = {
    "1f1b": {"parallel": {"pp": 2}},
    "gpipe": {"parallel": {"pp": 2, "schedule": "gpipe"}},
    "interleaved": {"parallel": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}},
    "recomputed": {"parallel": {"pp": 2, "activation_checkpointing": "full"}},
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("two")
    (folder / "cases.json").write_text(json.dumps(CASES))
    run_ranks(HERE / "pipeline_cases.py", str(folder), str(folder / "cases.json"))
    return {name: [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)] for name in CASES}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
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
    assert set(ours) == set(theirs)
    largest = max(float(tensor.abs().max()) for tensor in theirs.values())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) / largest


@pytest.mark.slow  # the fast suite has one pipeline: test_train.py
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


@pytest.mark.slow
def test_differing_copies_of_the_embedding_are_not_saved() -> None:
    code, _, err = finish(start(str(HERE / "drifting_stage.py")))
    assert code == 1
    assert "RunError: the copies of wte.weight on the first and the last pipeline stage differ" in err
