"""Rules of the modern recipe, and the presets that are what it gives."""

import math

import pytest

from gpt2train.config import TrainSettings, preset
from gpt2train.config.recipe import counted_parameters, horizon, model_of, modern, shape_of, training_of
from gpt2train.errors import UserError
from gpt2train.model.families import parameter_count, sizes
from gpt2train.settings import build


@pytest.mark.parametrize("depth", [12, 24])
def test_a_preset_is_what_the_recipe_gives(depth: int) -> None:
    assert preset(f"modern-{depth}") == modern(depth)


def test_the_demo_s_preset_is_depth_3_for_as_many_tokens_as_two_cores_see_in_minutes() -> None:
    given = preset("modern-tiny")
    rules = training_of(model_of(3), given["steps"] * given["batch"]["global_batch"] * 256)
    assert given["model"] == model_of(3)
    assert given["optimizer"] == rules["optimizer"]
    assert given["schedule"] == rules["schedule"] | {"warmup": round(0.02 * given["steps"])}


def test_the_numbers_of_depth_12_follow_from_the_published_rules() -> None:
    """By hand: 12 blocks of 4 x 768² + 3 x 768 x 2,048 and their norms, 20 tokens for each parameter, Step Law."""
    block = 4 * 768**2 + 3 * 768 * 2048 + 2 * 768 + 2 * 128
    head = 50_257 * 768
    tokens = 20 * (12 * block + head)
    settings = build(TrainSettings, modern(12))
    assert counted_parameters(shape_of(model_of(12))) == (12 * block, 12 * block + head)
    assert horizon(12) == tokens
    batch = settings.batch.global_batch * settings.model.context
    assert batch == 2**17 and abs(math.log2(0.58 * tokens**0.571 / batch)) <= 0.5
    assert settings.steps == round(tokens / batch)
    assert settings.optimizer.lr == pytest.approx(1.79 * (12 * block) ** -0.713 * tokens**0.307, rel=0.05)
    assert (settings.model.hidden, settings.model.heads, settings.optimizer.name) == (768, 6, "muon")


@pytest.mark.parametrize("depth", [*range(1, 33), 64, 128])
def test_every_depth_is_a_valid_run_that_grows_with_it(depth: int) -> None:
    settings = build(TrainSettings, modern(depth))
    model = settings.model
    assert model.hidden == 64 * depth == model.heads * model.shape(128).head_dim
    assert model.shape(128).head_dim in (64, 128)
    for processes in (1, 2):
        settings.batch.sizes(processes)
    if depth > 1:
        assert horizon(depth) > horizon(depth - 1)
        assert settings.optimizer.lr <= build(TrainSettings, modern(depth - 1)).optimizer.lr


def test_the_vocabulary_s_rows_are_not_most_of_a_small_model() -> None:
    for depth in (3, 7, 8, 12):
        shape = shape_of(model_of(depth))
        assert math.prod(sizes(shape)["lm_head.weight"]) < parameter_count(shape) / 2


@pytest.mark.parametrize("depth", [0, -3, 129])
def test_a_depth_out_of_bounds_is_refused(depth: int) -> None:
    with pytest.raises(UserError, match=rf"--depth {depth}: the recipe has 1 to 128 blocks"):
        modern(depth)
