"""GPT-2 and its options: initial weights, the loss in chunks, sizes, transformers, decoding, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import TrainSettings, to_toml
from gpt2train.config.model import ModelSettings
from gpt2train.convert.huggingface import read_model, read_shape
from gpt2train.convert.megatron_write import write_megatron
from gpt2train.errors import UserError
from gpt2train.model.families import HEAD, is_tied, on_stage, sizes
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.gpt2_family import drop_published
from gpt2train.model.init import initial_value, initialise
from gpt2train.model.lazy_weights import LazyWeights, empty_model, in_memory
from gpt2train.model.loss import IGNORE, chunked_cross_entropy
from gpt2train.model.rms_norm import rms_norm
from gpt2train.model.shape import Shape
from gpt2train.parallel.pipeline_stages import stage_layers
from tests.gpt2train.convert.model_folders import from_huggingface, to_huggingface, write_model
from tests.gpt2train.convert.test_huggingface import weights_of
from tests.gpt2train.jobs import VOCAB
from tests.gpt2train.models import lively, plain_cross_entropy
from tests.gpt2train.parallel.small_model_folder import write_tokenizer

SHAPE = Shape(vocab=128, layers=3, heads=4, hidden=32, context=24)


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
