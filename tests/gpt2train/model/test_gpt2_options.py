"""Options of the family gpt2: sizes, transformers, decoding, refusals, and the losses of all layouts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt2train.config import TrainSettings, to_toml
from gpt2train.config.model import ModelSettings
from gpt2train.convert.huggingface import read_model, read_shape
from gpt2train.convert.megatron_write import write_megatron
from gpt2train.errors import UserError
from gpt2train.model.families import HEAD, is_tied, sizes
from gpt2train.model.gpt2_family import drop_published
from gpt2train.model.lazy_weights import LazyWeights, empty_model, in_memory
from gpt2train.model.shape import Shape
from tests.gpt2train.convert.model_folders import from_huggingface, to_huggingface, write_model
from tests.gpt2train.convert.test_huggingface import weights_of
from tests.gpt2train.jobs import VOCAB
from tests.gpt2train.model.test_llama import check_steps
from tests.gpt2train.models import lively
from tests.gpt2train.parallel.small_model_folder import write_tokenizer

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


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({}, {"heads": 5}, "hidden 32 is not a multiple of heads 5"),
        ({"activation": "silu"}, {}, "activation"),
        ({"inner": -1}, {}, "inner"),
        ({"n_inner": 1}, {}, "unknown setting 'n_inner'; did you mean 'inner'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelSettings.model_validate({"heads": 4, "hidden": 32, "options": options} | changes)
    assert ModelSettings.model_validate({"heads": 5, "hidden": 32, "options": {"head_dim": 7}}).shape(9).head_dim == 7


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


@settings(max_examples=15, deadline=None)
@given(OPTIONS)
def test_a_step_with_the_cache_has_the_logits_of_a_whole_pass(options: dict[str, Any]) -> None:
    shape = shape_of(options | ({"head_dim": 12} if options.get("head_dim", 0) > 9 else {}))
    check_steps(lively(shape, noise=0.1), 4)
