"""The contract of a model family: sizes, options, and mistakes, each in one line that names the first difference."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from gpt2train import settings
from gpt2train.config.model import ModelSettings
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import build_model
from gpt2train.model.families import MODELS, ModelFamily, Sizes, is_tied, parameter_count, sizes
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.gpt2_family import gpt2_sizes
from gpt2train.model.shape import Shape
from gpt2train.settings import Settings
from tests.gpt2train.jobs import VOCAB
from tests.gpt2train.model.test_llama import MODELS as LLAMAS
from tests.gpt2train.model.test_llama import WITH_EMBEDDINGS

FAMILY = ModelFamily(model=f"{__name__}:Variant", sizes=gpt2_sizes, residual=("attn.proj", "down"))
SHAPE = Shape(vocab=300, layers=2, heads=4, hidden=32, context=16)


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


def build(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, **changes: Any) -> Any:
    """Create the model of a family with some changes, under a name that no other test has, as sizes are cached."""
    name = "".join(c if c.isalnum() else "_" for c in request.node.name.lower())
    monkeypatch.setitem(MODELS._entries, name, dataclasses.replace(FAMILY, **changes))
    with torch.device("meta"):
        return build_model(dataclasses.replace(SHAPE, family=name))


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
        assert type(build(monkeypatch, request)) is Variant
        return
    with pytest.raises(UserError, match=f"^model family test_a_model[a-z0-9_]*: {message}"):
        build(monkeypatch, request)


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
        ({"model": f"{__name__}:Plain"}, r"test_family_check:Plain is not a subclass of CausalLM"),
        ({"model": f"{__name__}:WithBuffer"}, r"WithBuffer has the buffer mask, which nothing would fill; compute it"),
    ],
)
def test_a_wrong_specification_is_refused(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build(monkeypatch, request, **changes)
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
        settings.build(ModelSettings, {"family": "refused"})


def shape_of(family: str, options: dict[str, Any], **changes: int) -> Shape:
    sizes = {"layers": 5, "heads": 4, "hidden": 32, "context": 24, **changes}
    return settings.build(ModelSettings, {"family": family, "options": options, **sizes}).shape(VOCAB)


T5: dict[str, Any] = {"encoder_layers": 2, "head_dim": 5, "inner": 40}
VARIANTS: list[tuple[str, dict[str, Any]]] = [  # every option of GPT-2 is drawn in test_gpt2.py
    *(("llama", options) for options in (LLAMAS | WITH_EMBEDDINGS).values()),
    *(("t5", {**T5, "activation": kind, "tied": tied}) for kind in ("relu", "gated-gelu") for tied in (True, False)),
]


@pytest.mark.parametrize(("family", "options"), VARIANTS, ids=str)
def test_sizes_are_those_of_the_model_in_its_order(family: str, options: dict[str, Any]) -> None:
    shape = shape_of(family, options)
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
        ("t5", {**T5, "buckets": 30}, {}, "buckets 30 is not a multiple of 4"),
        ("t5", {**T5, "max_distance": 16}, {}, "max_distance 16 must be above half of buckets 32"),
        ("t5", {**T5, "activation": "silu"}, {}, "activation"),
        ("t5", {**T5, "kv": 3}, {}, "unknown setting 'kv'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    family: str, options: dict[str, Any], changes: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        shape_of(family, options, **changes)


def test_heads_of_their_own_size_need_not_divide_the_width() -> None:
    for family, size in (("gpt2", 7), ("llama", 6)):
        assert shape_of(family, {"head_dim": size}, heads=5).head_dim == size
