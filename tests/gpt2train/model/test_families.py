"""Model families: GPT-2 and T5 against transformers and their sizes, options, refusals; the contract of a family."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpt2train.config import TrainSettings, to_toml
from gpt2train.config.model import ModelSettings
from gpt2train.convert.huggingface import read_model, read_shape
from gpt2train.convert.megatron_write import write_megatron
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import build_model
from gpt2train.model.families import (
    HEAD,
    MODELS,
    ModelFamily,
    Sizes,
    is_tied,
    on_stage,
    parameter_count,
    shard_dim,
    sizes,
)
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.gpt2_family import drop_published, gpt2_sizes
from gpt2train.model.init import initial_value, initialise
from gpt2train.model.lazy_weights import LazyWeights, empty_model, in_memory
from gpt2train.model.loss import IGNORE, chunked_cross_entropy
from gpt2train.model.rms_norm import rms_norm
from gpt2train.model.shape import Shape
from gpt2train.model.t5 import T5, position_buckets
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.plan.parameters import parameters, pieces
from gpt2train.settings import Settings, build
from tests.gpt2train.convert.model_folders import from_huggingface, to_huggingface, write_model
from tests.gpt2train.convert.test_huggingface import weights_of
from tests.gpt2train.jobs import VOCAB
from tests.gpt2train.model.test_llama import MODELS as LLAMAS
from tests.gpt2train.model.test_llama import WITH_EMBEDDINGS
from tests.gpt2train.models import lively, plain_cross_entropy
from tests.gpt2train.parallel.small_model_folder import write_tokenizer

SHAPE = Shape(vocab=128, layers=3, heads=4, hidden=32, context=24)
FAMILY = ModelFamily(model=f"{__name__}:Variant", sizes=gpt2_sizes, residual=("attn.proj", "down"))
WHOLE = Shape(vocab=300, layers=2, heads=4, hidden=32, context=16)
T5_SIZES: dict[str, Any] = {"encoder_layers": 2, "head_dim": 5, "inner": 40}
VARIANTS: list[tuple[str, dict[str, Any]]] = [  # every option of GPT-2 is drawn above
    *(("llama", options) for options in (LLAMAS | WITH_EMBEDDINGS).values()),
    *(
        ("t5", {**T5_SIZES, "activation": kind, "tied": tied})
        for kind in ("relu", "gated-gelu")
        for tied in (True, False)
    ),
]


@pytest.mark.parametrize("terms", [{}, {"softcap": 2.0}, {"z_loss": 0.01}, {"softcap": 3.0, "z_loss": 0.1}])
@pytest.mark.parametrize(("rows", "vocab"), [(1, None), (255, None), (256, 61), (700, 64)])
def test_chunked_loss_equals_the_plain_one(rows: int, vocab: int | None, terms: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 16, generator=generator)
    weight = torch.randn(64, 16, generator=generator)
    targets = torch.randint(0, vocab or 64, (rows,), generator=generator)
    targets[:: 3 if rows > 1 else 2] = IGNORE if rows > 1 else 3
    results = []
    for function in (chunked_cross_entropy, plain_cross_entropy):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = function(h, w, targets, vocab, **terms)
        (loss * 0.5).sum().backward()
        results.append((loss, h.grad, w.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        again = chunked_cross_entropy(hidden, weight, targets, vocab, **terms)
        torch.testing.assert_close(again, results[0][0].detach())


def test_chunked_loss_refuses_a_second_backward() -> None:
    hidden, weight = torch.randn(5, 16, requires_grad=True), torch.randn(64, 16, requires_grad=True)
    loss = chunked_cross_entropy(hidden, weight, torch.arange(5)) * 0.5
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_chunked_loss_under_autocast_is_close_to_fp32() -> None:
    model = lively(SHAPE, noise=0.1).requires_grad_()
    tokens = torch.randint(0, SHAPE.vocab, (2, SHAPE.context), generator=torch.Generator().manual_seed(2))
    exact = model(tokens, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(tokens, tokens)
    rough.backward()
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    assert model.wte.weight.grad is not None and model.wte.weight.grad.dtype == torch.float32


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    model = initialise(GPT2(SHAPE), 7)
    for name, parameter in reversed(list(model.named_parameters())):
        assert torch.equal(parameter, initial_value(name, tuple(parameter.shape), SHAPE, 7))
    deeper = initialise(GPT2(Shape(vocab=128, layers=5, heads=4, hidden=32, context=24)), 7)
    assert torch.equal(model.blocks["1"].up.weight, deeper.blocks["1"].up.weight)
    assert not torch.equal(model.wpe.weight, initialise(GPT2(SHAPE), 8).wpe.weight)
    assert model.wte.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks["0"].down.weight.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.05)


PUBLISHED = Shape(vocab=VOCAB, layers=2, heads=4, hidden=32, context=16)
# Models that GPT2LMHeadModel has, and one that it does not have.
PEERS: dict[str, dict[str, Any]] = {
    "published": {},
    "wide": {"inner": 200},
    "untied": {"tied": False},
    "narrow relu": {"inner": 24, "activation": "relu", "tied": False},
    "exact gelu": {"activation": "gelu"},
}
# Without ReLU: rounding, which differs between layouts, can move a number across its kink.
ODD: dict[str, Any] = {"head_dim": 12, "inner": 40, "activation": "gelu", "bias": False, "tied": False}
ACTIVATIONS = st.sampled_from(["gelu_new", "gelu", "relu"])
VALUES = {"head_dim": st.integers(0, 12), "inner": st.integers(0, 70), "activation": ACTIVATIONS}
OPTIONS = st.fixed_dictionaries({}, optional=VALUES | {"bias": st.booleans(), "tied": st.booleans()})


def shape_of(options: dict[str, Any]) -> Shape:
    return drop_published(replace(PUBLISHED, options=tuple(options.items())))


@given(OPTIONS)
def test_sizes_are_those_of_the_model_in_its_order(options: dict[str, Any]) -> None:
    shape = shape_of(options)
    model = empty_model(shape)
    assert list(sizes(shape).items()) == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert is_tied(shape) == options.get("tied", True)
    assert any(name.endswith("bias") for name in sizes(shape)) == options.get("bias", True)


@given(OPTIONS)
def test_options_of_a_published_gpt2_are_left_out(options: dict[str, Any]) -> None:
    model = ModelSettings.model_validate({"heads": 4, "hidden": 32, "options": options})
    published = {"head_dim": (0, 8), "inner": (0, 128), "activation": ("gelu_new",), "bias": (True,), "tied": (True,)}
    assert model.options == {name: value for name, value in options.items() if value not in published[name]}
    assert ModelSettings.model_validate(model.model_dump()) == model
    if not model.options:
        given = TrainSettings.model_validate({"model": {"heads": 4, "hidden": 32, "options": options}})
        plain = TrainSettings.model_validate({"model": {"heads": 4, "hidden": 32}})
        assert to_toml(given) == to_toml(plain) and given.model.shape(300) == plain.model.shape(300)


@pytest.mark.parametrize("options", PEERS.values(), ids=PEERS)
def test_transformers_has_equal_logits_loss_and_gradients(options: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    shape = shape_of(options)
    ours, activation = lively(shape, noise=0.1).requires_grad_(), options.get("activation", "gelu_new")
    config = transformers.GPT2Config(
        vocab_size=shape.vocab, n_positions=16, n_embd=32, n_layer=2, n_head=4, n_inner=options.get("inner"),
        activation_function=activation, tie_word_embeddings=options.get("tied", True),
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    loaded = theirs.load_state_dict(to_huggingface(weights_of(ours), shape), strict=False)
    assert set(loaded.missing_keys) <= {HEAD} and not loaded.unexpected_keys
    tokens = torch.randint(shape.vocab, (3, 16), generator=torch.Generator().manual_seed(1))
    out = theirs(tokens, labels=tokens)
    assert torch.allclose(ours(tokens)[..., : shape.vocab], out.logits, atol=1e-5)
    out.loss.backward()
    shifted = torch.cat([tokens[:, 1:], torch.full((3, 1), -100)], 1)
    loss = ours(tokens, shifted) / 45
    loss.backward()
    assert abs(loss.item() - out.loss.item()) < 1e-5
    names = {parameter: name for name, parameter in theirs.named_parameters()}
    peer = from_huggingface({name: p.grad for p, name in names.items()}, shape)
    for name, parameter in ours.named_parameters():
        rows = shape.vocab if name in ("wte.weight", HEAD) else None
        assert parameter.grad is not None and torch.allclose(parameter.grad[:rows], peer[name][:rows], atol=1e-5), name


@pytest.mark.parametrize("options", [*PEERS.values(), ODD, {"bias": False}], ids=[*PEERS, "odd", "no biases"])
def test_a_folder_is_read_back_and_transformers_loads_what_it_has(options: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    shape, known = shape_of(options), options.get("bias", True)
    model = lively(shape, noise=0.1)
    write_tokenizer(tmp_path / "tokenizer", VOCAB)
    write_model(tmp_path / "model", weights_of(model), shape, tmp_path / "tokenizer")
    assert read_shape(tmp_path / "model") == shape
    tokens = torch.randint(shape.vocab, (3, 16), generator=torch.Generator().manual_seed(1))
    expected = model(tokens)[..., : shape.vocab]
    assert torch.equal(read_model(tmp_path / "model")(tokens)[..., : shape.vocab], expected)
    assert ("transformers" in (tmp_path / "model/README.md").read_text()) == known
    if known:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
        assert torch.allclose(theirs(tokens).logits, expected, atol=1e-5)
        theirs.save_pretrained(tmp_path / "theirs")
        assert read_shape(tmp_path / "theirs") == shape
        back = read_model(tmp_path / "theirs").state_dict()
        assert all(torch.equal(back[n][:VOCAB], value[:VOCAB]) for n, value in weights_of(model).items())
    else:
        with pytest.raises(ValueError, match="gpt2train_gpt2"):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_megatron_has_the_published_models_alone(tmp_path: Path) -> None:
    shape = shape_of({"inner": 40})
    with pytest.raises(UserError, match="GPT-2 as published, not with inner = 40"):
        write_megatron(tmp_path / "megatron", LazyWeights(shape, in_memory(weights_of(lively(shape, noise=0.1)))))


@pytest.mark.parametrize("size", [(16,), (3, 5, 16), (2, 3, 4, 8)])
@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_values_and_gradients_are_those_of_torch(size: tuple[int, ...], eps: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, generator=generator).transpose(0, -2 if len(size) > 1 else 0).requires_grad_()
    weight = torch.randn(size[-1:], generator=generator).requires_grad_()
    results = []
    for function in (lambda: rms_norm(x, weight, eps), lambda: F.rms_norm(x, weight.shape, weight, eps)):
        y = function()
        grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
        results.append((y.detach(), *torch.autograd.grad(y, (x, weight), grad)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_half_precision_is_left_to_torch() -> None:
    x, weight = torch.randn(4, 16, dtype=torch.bfloat16), torch.ones(16, dtype=torch.bfloat16)
    assert torch.equal(rms_norm(x, weight, 1e-5), F.rms_norm(x, (16,), weight, 1e-5))


UNEVEN_SHAPE = Shape(vocab=300, layers=5, heads=4, hidden=32, context=16)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_have_the_parameters_of_the_specification(stages: int) -> None:
    for layers in stage_layers(UNEVEN_SHAPE, stages):
        stage = empty_model(UNEVEN_SHAPE).keep_layers(layers)
        expected = {
            name
            for name in sizes(UNEVEN_SHAPE)
            if (
                int(name.split(".")[1]) in layers
                if name.startswith("blocks.")
                else on_stage(name, UNEVEN_SHAPE, layers)
            )
        }
        assert {name for name, _ in stage.named_parameters()} == expected


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


class Variant(GPT2):
    """GPT-2 with a free choice of one module."""

    modules_instead: dict[str, nn.Module] = {}

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout)
        for name, module in self.modules_instead.items():
            parent, _, last = name.rpartition(".")
            setattr(self.get_submodule(parent), last, module)


class ListOptions(Settings):
    widths: tuple[int, ...] = (1, 2)


class NoneOptions(Settings):
    inner: int | None = None


class WithBuffer(GPT2):
    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout)
        self.register_buffer("mask", torch.ones(shape.context, shape.context).tril(), persistent=False)


class Plain(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()


def changed(**sizes: tuple[int, ...] | None) -> Any:
    """Function of sizes with other ones, by names with two underscores for each point; None removes a parameter."""

    def function(shape: Shape) -> Sizes:
        new = {name.replace("__", "."): size for name, size in sizes.items()}
        merged = {name: new.get(name, size) for name, size in gpt2_sizes(shape).items()}
        merged |= {name: size for name, size in new.items() if name not in merged}
        return {name: size for name, size in merged.items() if size is not None}

    return function


def build_family(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, **changes: Any) -> Any:
    """Create the model of a family with some changes, under a name that no other test has, as sizes are cached."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name.lower())
    monkeypatch.setitem(MODELS._entries, name, dataclasses.replace(FAMILY, **changes))
    with torch.device("meta"):
        return build_model(dataclasses.replace(WHOLE, family=name))


@pytest.mark.parametrize(
    ("instead", "message"),
    [
        ({}, ""),
        (
            {"blocks.1.up": nn.Linear(32, 96, device="meta")},
            r"blocks.1.up.weight has the size \(96, 32\) in Variant and \(128, 32\) in `sizes`; correct `sizes`, or Va",
        ),
        (
            {"blocks.0.down": nn.Linear(128, 32, bias=False, device="meta")},
            r"`sizes` names blocks.0.down.bias, which Variant does not have;",
        ),
        (
            {"blocks.0.gate": nn.Linear(32, 128, device="meta")},
            r"Variant has a parameter blocks.0.gate.weight of size \(128, 32\), which `sizes` does not name;",
        ),
    ],
)
def test_a_model_that_differs_from_its_specification_is_refused(
    instead: dict[str, nn.Module], message: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(Variant, "modules_instead", instead)
    if not message:
        assert type(build_family(monkeypatch, request)) is Variant
        return
    with pytest.raises(UserError, match=f"^model family test_a_model[a-z0-9_]*: {message}"):
        build_family(monkeypatch, request)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sizes": changed(wte__weight=(300, 32))},
            r"`sizes` has the size \(300, 32\) for wte.weight; give \(padded_vocab, hidden\) = \(384, 32\)",
        ),
        ({"sizes": changed(wte__weight=None)}, r"`sizes` has no size for wte.weight; give \(padded_vocab, hidden\)"),
        ({"sizes": changed(lm_head__weight=(300, 32))}, r"`sizes` has the size \(300, 32\) for lm_head.weight"),
        (
            {"sizes": changed(blocks__1__up__bias=(7,))},
            r"unequal blocks.*: blocks.1.up.bias has the size \(7,\) in it and \(128,\) in block 0; use `all_blocks`",
        ),
        ({"sizes": lambda shape: gpt2_sizes(dataclasses.replace(shape, layers=1))}, "or not `layers` = 2: block 0 nam"),
        ({"residual": ("attn.proj", "dwn")}, r"no parameter of a block belongs to 'dwn' of residual = \('attn.proj', "),
        ({"residual": "down,"}, r"'d' of residual = 'down,'"),
        ({"model": f"{__name__}:Missing"}, r"cannot import .*:Missing, which a model .* names \(AttributeError: "),
        ({"model": "no_such_module:Model"}, r"names \(ModuleNotFoundError: No module named 'no_such_module'\); cor"),
        ({"model": f"{__name__}:Plain"}, r"test_families:Plain is not a subclass of CausalLM"),
        ({"model": f"{__name__}:WithBuffer"}, r"WithBuffer has the buffer mask, which nothing would fill; compute it"),
    ],
)
def test_a_wrong_specification_is_refused(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_family(monkeypatch, request, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ListOptions, r"option widths of the model family refused is \[1, 2\]: a number, a string or a boolean"),
        (NoneOptions, r"option inner of the model family refused is None: a number"),
    ],
)
def test_options_that_no_file_of_settings_holds_are_refused(
    options: type[Settings], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS._entries, "refused", dataclasses.replace(FAMILY, options=options))
    with pytest.raises(UserError, match=f"^settings: options: {message}"):
        build(ModelSettings, {"family": "refused"})


def built_shape(family: str, options: dict[str, Any], **changes: int) -> Shape:
    sizes = {"layers": 5, "heads": 4, "hidden": 32, "context": 24, **changes}
    return build(ModelSettings, {"family": family, "options": options, **sizes}).shape(VOCAB)


@pytest.mark.parametrize(("family", "options"), VARIANTS, ids=str)
def test_sizes_are_those_of_the_model_for_all_options(family: str, options: dict[str, Any]) -> None:
    shape = built_shape(family, options)
    model = build_model(shape)
    assert list(sizes(shape).items()) == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert parameter_count(shape) == sum(p.numel() for p in model.parameters())
    assert is_tied(shape) == options.get("tied", False)


@pytest.mark.parametrize(
    ("family", "options", "changes", "message"),
    [
        ("gpt2", {}, {"heads": 5}, "hidden 32 is not a multiple of heads 5"),
        ("gpt2", {"activation": "silu"}, {}, "activation"),
        ("gpt2", {"inner": -1}, {}, "inner"),
        ("gpt2", {"n_inner": 1}, {}, "unknown setting 'n_inner'; did you mean 'inner'"),
        ("llama", {"kv_heads": 3}, {}, "kv_heads 3 does not divide heads 4"),
        ("llama", {}, {"heads": 5}, "hidden 32 is not a multiple of heads 5; change one, or set head_dim"),
        ("llama", {"head_dim": 7}, {}, "a head has the size 7; rotary positions need an even one"),
        ("llama", {"activation": "gelu"}, {}, "activation"),
        ("llama", {"norm": 1}, {}, "unknown setting 'norm'"),
        ("llama", {"value_embeddings": 3}, {}, "value_embeddings 3 is more than half of layers 5: .*; give at most 2"),
        ("llama", {"value_embeddings": 1}, {"layers": 1}, "give at most 0"),
        ("llama", {"value_embeddings": -1}, {}, "value_embeddings"),
        ("t5", {}, {}, "layers 5 cannot be halved into encoder and decoder; set encoder_layers"),
        ("t5", {"encoder_layers": 5}, {}, "encoder_layers 5 of layers 5 leaves no block to the decoder"),
        ("t5", {**T5_SIZES, "buckets": 30}, {}, "buckets 30 is not a multiple of 4"),
        ("t5", {**T5_SIZES, "max_distance": 16}, {}, "max_distance 16 must be above half of buckets 32"),
        ("t5", {**T5_SIZES, "activation": "silu"}, {}, "activation"),
        ("t5", {**T5_SIZES, "kv": 3}, {}, "unknown setting 'kv'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    family: str, options: dict[str, Any], changes: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        built_shape(family, options, **changes)


def test_heads_of_their_own_size_need_not_divide_the_width() -> None:
    for family, size in (("gpt2", 7), ("llama", 6)):
        assert built_shape(family, {"head_dim": size}, heads=5).head_dim == size
