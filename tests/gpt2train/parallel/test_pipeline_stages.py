"""Division of a model into pipeline stages: balanced, and equal to the whole model."""

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import preset
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.parallel.pipeline_stages import head_weight, split_layers, stage_layers

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
