"""Options and parameter sizes of the model family gpt2; does not import torch.

The defaults give a GPT-2 as published. An option that has the value of GPT-2 is left out of the shape, so that the
files and fingerprints of a GPT-2 have no options at all.
"""

from dataclasses import replace
from functools import cache
from typing import Literal

from pydantic import Field

from gpt2train.model.shape import Shape, Sizes, all_blocks
from gpt2train.settings import Settings


class GPT2Options(Settings):
    """Settings of the family gpt2 alone, the group [model.options]."""

    head_dim: int = Field(0, ge=0, le=2**16)
    """Size of queries, keys and values per head (CPM's `--kv-hidden-size`); `heads * head_dim` need not be `hidden`.
    0: `hidden / heads`."""
    inner: int = Field(0, ge=0, le=2**24)
    """Width of the MLP (`n_inner` of transformers, CPM's `--ff-hidden-size`). 0: 4 times `hidden`."""
    activation: Literal["gelu_new", "gelu", "relu"] = "gelu_new"
    """Activation of the MLP: the approximation of GELU by tanh, GELU itself, or ReLU."""
    bias: bool = True
    """Biases of all linear layers and norms."""
    tied: bool = True
    """Use the token embedding as the output projection."""


@cache
def options_of(shape: Shape) -> GPT2Options:
    """Options of a shape, with the values of those that follow from others."""
    given = GPT2Options.model_validate(dict(shape.options))
    return given.model_copy(update={"head_dim": shape.head_dim, "inner": given.inner or 4 * shape.hidden})


def drop_published(shape: Shape) -> Shape:
    """Shape without the options that have the value of a GPT-2, the others in the order of the settings."""
    given = GPT2Options.model_validate(dict(shape.options)).model_dump(mode="json")
    same = {"head_dim": shape.hidden / shape.heads, "inner": 4 * shape.hidden}
    plain = GPT2Options().model_dump(mode="json")
    return replace(shape, options=tuple((k, v) for k, v in given.items() if v not in (plain[k], same.get(k))))


def gpt2_sizes(shape: Shape) -> Sizes:
    """Sizes of the parameters of a model of this family."""
    width, chosen = shape.hidden, options_of(shape)
    heads = shape.heads * chosen.head_dim

    def layer(name: str, rows: int, *columns: int) -> Sizes:
        return {f"{name}.weight": (rows, *columns), **({f"{name}.bias": (rows,)} if chosen.bias else {})}

    block = {
        **layer("ln_1", width),
        **layer("attn.qkv", 3 * heads, width),
        **layer("attn.proj", width, heads),
        **layer("ln_2", width),
        **layer("up", chosen.inner, width),
        **layer("down", width, chosen.inner),
    }
    return {
        "wte.weight": (shape.padded_vocab, width),
        "wpe.weight": (shape.context, width),
        **all_blocks(block, shape.layers),
        **layer("ln_f", width),
        **({} if chosen.tied else {"lm_head.weight": (shape.padded_vocab, width)}),
    }


def gpt2_saved(shape: Shape) -> int:
    """Numbers per token that a block saves beyond the rule: ReLU saves its output alone, GELU also its input."""
    chosen = options_of(shape)
    return -chosen.inner if chosen.activation == "relu" else 0
