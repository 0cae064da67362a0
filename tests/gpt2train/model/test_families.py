"""The specification of GPT-2 against its model."""

import pytest

from gpt2train.errors import UserError
from gpt2train.model.families import MODELS, ModelFamily, on_stage, shard_dim, sizes
from gpt2train.model.lazy_weights import empty_model
from gpt2train.model.shape import Shape
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.plugins import load

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


def test_tensor_parallelism_splits_all_matrices_but_positions() -> None:
    split = {name: shard_dim(name, SHAPE) for name in sizes(SHAPE)}
    block = {name.removeprefix("blocks.4."): dim for name, dim in split.items() if name.startswith("blocks.4.")}
    rows = ("attn.qkv.weight", "attn.qkv.bias", "up.weight", "up.bias")
    columns = ("attn.proj.weight", "down.weight")
    assert {name for name, dim in block.items() if dim == 0} == set(rows)
    assert {name for name, dim in block.items() if dim == 1} == set(columns)
    top = {name: dim for name, dim in split.items() if not name.startswith("blocks.")}
    assert top == {"wte.weight": 0, "wpe.weight": None, "ln_f.weight": None, "ln_f.bias": None}


def test_classes_that_a_specification_names_exist() -> None:
    family = MODELS["gpt2"]
    assert load(family.model).__name__ == "GPT2"
    assert load(family.layout)("gpt2").in_transformers(SHAPE)
    assert family.decode_step is not None and callable(load(family.decode_step))
    with pytest.raises(UserError, match="named gpt2; rename"):
        MODELS.register("gpt2", ModelFamily(model="x:Y", sizes=lambda shape: {}, residual=()))
