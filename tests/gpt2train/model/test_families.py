"""The specification of GPT-2 against its model."""

import pytest

from gpt2train.model.families import on_stage, sizes
from gpt2train.model.lazy_weights import empty_model
from gpt2train.model.shape import Shape
from gpt2train.parallel.pipeline_stages import stage_layers

SHAPE = Shape(vocab=300, layers=5, heads=4, hidden=32, context=16)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_have_the_parameters_of_the_specification(stages: int) -> None:
    for layers in stage_layers(SHAPE, stages):
        stage = empty_model(SHAPE).keep_layers(layers)
        expected = {
            name
            for name in sizes(SHAPE)
            if (int(name.split(".")[1]) in layers if name.startswith("blocks.") else on_stage(name, SHAPE, layers))
        }
        assert {name for name, _ in stage.named_parameters()} == expected
