"""T5: position buckets against transformers, sizes against the model, pipeline stages, options that do not fit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpt2train.config import TrainSettings
from gpt2train.config.model import ModelSettings
from gpt2train.model.causal_lm import build_model
from gpt2train.model.families import on_stage, parameter_count, shard_dim, sizes
from gpt2train.model.init import initialise
from gpt2train.model.lazy_weights import empty_model
from gpt2train.model.shape import Shape
from gpt2train.model.t5 import T5, position_buckets
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.plan.parameters import parameters, pieces
from gpt2train.settings import build


def make_shape(layers: int = 5, vocab: int = 100, **options: object) -> Shape:
    fields = {"family": "t5", "layers": layers, "heads": 4, "hidden": 32, "context": 24}
    fields["options"] = {"encoder_layers": 2, "decoder_context": 12, **options}
    return build(ModelSettings, fields).shape(vocab)


@settings(max_examples=60, deadline=None)
@given(
    quarter=st.integers(1, 40), more=st.integers(1, 4000), bidirectional=st.booleans(), start=st.integers(-5000, 4000)
)
def test_buckets_are_those_of_transformers(quarter: int, more: int, bidirectional: bool, start: int) -> None:
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    buckets, distance = 4 * quarter, torch.arange(start, start + 1000)
    chosen = {"bidirectional": bidirectional, "max_distance": 2 * quarter + more}
    theirs = modeling.T5Attention._relative_position_bucket(distance, num_buckets=buckets, **chosen)
    assert torch.equal(position_buckets(distance, buckets=buckets, **chosen), theirs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cuts", [(2,), (1,), (3,), (1, 2, 3, 4), (1, 4), (2, 3)])
def test_every_split_of_the_layers_computes_what_the_model_does(cuts: tuple[int, ...], tied: bool) -> None:
    shape = make_shape(tied=tied)
    whole = initialise(build_model(shape), 3).eval()
    generator = torch.Generator().manual_seed(1)
    tokens, inputs = (torch.randint(100, (2, length), generator=generator) for length in (24, 12))
    expected = whole(tokens, decoder_tokens=inputs)
    x = tokens
    for start, stop in zip((0, *cuts), (*cuts, 5), strict=True):
        stage = build_model(shape).keep_layers(range(start, stop)).eval()
        outside = {name for name in sizes(shape) if not name.startswith("blocks.")}
        expected_names = {name for name in outside if on_stage(name, shape, range(start, stop))}
        assert {name for name, _ in stage.named_parameters() if not name.startswith("blocks.")} == expected_names
        initialise(stage, 3)
        x = stage(x, decoder_tokens=inputs)
        if stop < 5:
            assert x.shape == (2, stage.sent_length(stop, 24), 32)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-5)


def test_padding_of_the_encoder_changes_nothing() -> None:
    model = initialise(build_model(make_shape()), 3).eval()
    assert isinstance(model, T5)
    tokens, inputs = torch.arange(20)[None], torch.arange(7)[None]
    padded = torch.cat((tokens, torch.full((1, 4), 99)), 1)
    expected = model(tokens, decoder_tokens=inputs)
    found = model(padded, decoder_tokens=inputs, lengths=torch.tensor([20]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_tables_of_biases_are_split_by_heads() -> None:
    shape = make_shape(tied=False)
    assert shard_dim("encoder_bias.weight", shape) == shard_dim("decoder_bias.weight", shape) == 1
    assert shard_dim("blocks.3.cross.proj.weight", shape) == 1 and shard_dim("blocks.3.cross.k.weight", shape) == 0
    assert shard_dim("encoder_norm.weight", shape) is None and shard_dim("lm_head.weight", shape) == 0


def test_published_sizes_and_the_parameters_of_each_stage() -> None:
    """T5-base has 222,903,552 parameters; `plan` counts on every stage what the stage has."""
    options = {"decoder_context": 114, "head_dim": 64, "inner": 3072}
    model = {"family": "t5", "layers": 24, "heads": 12, "hidden": 768, "context": 512, "options": options}
    objective = {"name": "span_corruption"}
    settings = build(TrainSettings, {"model": model, "objective": objective, "parallel": {"pp": 3}})
    shape = settings.model.shape(32_128)
    assert parameter_count(shape) == 222_903_552
    for piece, layers in zip(pieces(settings, shape), stage_layers(shape, 3), strict=True):
        stage = empty_model(shape).keep_layers(layers)
        assert parameters(piece, shape, 1) == sum(p.numel() for p in stage.parameters())


def test_flops_are_those_of_the_matrix_products() -> None:
    """Counted by torch in a forward pass, without the scores that no mask leaves out; the backward pass takes twice."""
    shape = make_shape(activation="gated-gelu", inner=40)
    model = initialise(build_model(shape), 3)
    tokens, inputs = torch.zeros(1, 24, dtype=torch.int64), torch.zeros(1, 12, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, decoder_tokens=inputs)
    assert flops_per_token(shape) == pytest.approx(3 * counter.get_total_flops() / 24, rel=0.001)
