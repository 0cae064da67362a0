"""Mistakes in a model family: one line that names the first difference, when the model is created."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from gpt2train import settings
from gpt2train.config.model import ModelSettings
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import build_model
from gpt2train.model.families import MODELS, ModelFamily, Sizes
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.gpt2_family import gpt2_sizes
from gpt2train.model.shape import Shape
from gpt2train.settings import Settings

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
