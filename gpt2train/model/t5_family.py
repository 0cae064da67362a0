"""Options, parameter sizes and initial values of the model family t5; does not import torch.

T5 is an encoder and a decoder (Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified
Text-to-Text Transformer"). Blocks are numbered through: first those of the encoder, then those of the decoder.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

from pydantic import Field

from gpt2train.model.shape import Shape, Sizes
from gpt2train.settings import Settings

RESIDUAL = ("attn.proj", "cross.proj", "down")
ENCODER_READERS = ("cross.k", "cross.v")
HEAD_TABLES = ("encoder_bias", "decoder_bias")  # a column per attention head


class T5Options(Settings):
    """Settings of the family t5 alone, the group [model.options]."""

    encoder_layers: int = Field(0, ge=0, le=10_000)
    """Blocks of the encoder; the other ones of `layers` are the decoder's. 0: half of `layers`."""
    decoder_context: int = Field(384, ge=1, le=2**24)
    """Length of the decoder's sequence; `context` is that of the encoder."""
    head_dim: int = Field(0, ge=0, le=2**16)
    """Size of a head of queries, keys and values (`kv`). 0: `hidden / heads`."""
    inner: int = Field(0, ge=0, le=2**20)
    """Width of the MLP (`ff`). 0: 4 times `hidden`."""
    activation: Literal["relu", "gated-gelu"] = "relu"
    """MLP: relu has two matrices, as T5; gated-gelu has three, down(gelu(gate(x)) * up(x)), as T5 1.1."""
    tied: bool = True
    """Use the token embedding, divided by sqrt(hidden), as the output projection (T5). False: a head of its own (T5
    1.1)."""
    buckets: int = Field(32, ge=4, le=2**16)
    """Relative positions that have a bias of their own, an even number."""
    max_distance: int = Field(128, ge=2, le=2**24)
    """Distance from which on all positions have the same bias."""
    start_id: int = Field(-1, ge=-1)
    """Token with which the decoder begins. -1: the tokenizer's padding token, or if it has none the one that ends a
    text."""
    norm_eps: float = Field(1e-6, gt=0, lt=1)
    """Epsilon of all norms."""


@cache
def options_of(shape: Shape) -> T5Options:
    """Options of a shape, with the values of those that follow from others."""
    given = T5Options.model_validate(dict(shape.options))
    return given.model_copy(
        update={
            "encoder_layers": given.encoder_layers or shape.layers // 2,
            "head_dim": shape.head_dim,
            "inner": given.inner or 4 * shape.hidden,
        }
    )


def complete_shape(shape: Shape) -> Shape:
    """Shape with the values of the options that follow from others.

    Raises:
        ValueError: encoder or decoder has no block, the size of a head is not a whole number, or the buckets do not fit
            the distance.
    """
    given, chosen = T5Options.model_validate(dict(shape.options)), options_of(shape)
    if not given.encoder_layers and shape.layers % 2:
        raise ValueError(f"layers {shape.layers} cannot be halved into encoder and decoder; set encoder_layers")
    if not 0 < chosen.encoder_layers < shape.layers:
        raise ValueError(
            f"encoder_layers {chosen.encoder_layers} of layers {shape.layers} leaves no block to the decoder; "
            "`layers` counts the blocks of both"
        )
    if shape.hidden % shape.heads and not given.head_dim:
        raise ValueError(f"hidden {shape.hidden} is not a multiple of heads {shape.heads}; change one, or set head_dim")
    if chosen.buckets % 4:  # half of them for each direction in the encoder, half of these for single positions
        raise ValueError(f"buckets {chosen.buckets} is not a multiple of 4")
    if chosen.max_distance <= chosen.buckets // 2:
        raise ValueError(f"max_distance {chosen.max_distance} must be above half of buckets {chosen.buckets}")
    return replace(shape, options=tuple(chosen.model_dump(mode="json").items()))


def t5_sizes(shape: Shape) -> Sizes:
    """Sizes of the parameters of a model of this family."""
    width, chosen = shape.hidden, options_of(shape)
    attention = shape.heads * chosen.head_dim

    def projections(name: str) -> Sizes:
        inputs = {f"{name}.{part}.weight": (attention, width) for part in "qkv"}
        return {**inputs, f"{name}.proj.weight": (width, attention)}

    own = {"ln_1.weight": (width,), **projections("attn")}
    cross = {"ln_cross.weight": (width,), **projections("cross")}
    mlp = {
        "ln_2.weight": (width,),
        **({"gate.weight": (chosen.inner, width)} if chosen.activation == "gated-gelu" else {}),
        "up.weight": (chosen.inner, width),
        "down.weight": (width, chosen.inner),
    }
    encoder, decoder = {**own, **mlp}, {**own, **cross, **mlp}
    blocks = {
        f"blocks.{layer}.{name}": size
        for layer in range(shape.layers)
        for name, size in (encoder if layer < chosen.encoder_layers else decoder).items()
    }
    table = (chosen.buckets, shape.heads)
    return {
        "wte.weight": (shape.padded_vocab, width),
        "encoder_bias.weight": table,
        "decoder_bias.weight": table,
        **blocks,
        "encoder_norm.weight": (width,),
        "ln_f.weight": (width,),
        **({} if chosen.tied else {"lm_head.weight": (shape.padded_vocab, width)}),
    }


def first_blocks(shape: Shape) -> tuple[int, ...]:
    """Numbers of the first block of the encoder and of the decoder."""
    return 0, options_of(shape).encoder_layers


def used_beside(shape: Shape) -> Mapping[str, Collection[int]]:
    """Blocks beside which each parameter outside the blocks is used."""
    chosen = options_of(shape)
    first, last = chosen.encoder_layers, shape.layers - 1
    return {
        "wte.weight": (0, first, last) if chosen.tied else (0, first),
        "encoder_bias.weight": range(first),
        "decoder_bias.weight": range(first, shape.layers),
        "encoder_norm.weight": (first - 1,),
        "ln_f.weight": (last,),
        "lm_head.weight": (last,),
    }


def initial_std(name: str, shape: Shape) -> float:
    """Standard deviation of the initial values of a matrix, as in Mesh TensorFlow's code of T5.

    Attention is not scaled, so that queries are smaller instead.
    """
    chosen, module = options_of(shape), name.removesuffix(".weight")
    match module.rpartition(".")[2]:
        case "wte":
            return 1.0
        case "q":
            return float((shape.hidden * chosen.head_dim) ** -0.5)
        case "proj":
            return float((shape.heads * chosen.head_dim) ** -0.5)
        case "down":
            return float(chosen.inner**-0.5)
    return float(shape.hidden**-0.5)


def sequence_lengths(shape: Shape) -> tuple[int, ...]:
    """Lengths of the sequences of a sample: the encoder's and the decoder's."""
    return shape.context, options_of(shape).decoder_context


def more_saved(shape: Shape) -> int:
    """Numbers per token that a block saves beyond the rule: the output of the GELU; ReLU saves its output alone."""
    chosen = options_of(shape)
    return chosen.inner if chosen.activation == "gated-gelu" else -chosen.inner


def inner_dropout(shape: Shape) -> int:
    """Width at which dropout follows the activation of the MLP."""
    return options_of(shape).inner


def flops_per_sample(shape: Shape) -> int:
    """FLOPs of forward and backward of a sample: 6 per weight and token that it multiplies, and those of attention.

    Keys and values of the attention to the encoder are computed from the encoder's tokens.
    """
    chosen, (inputs, outputs) = options_of(shape), sequence_lengths(shape)
    layers, decoder = chosen.encoder_layers, shape.layers - chosen.encoder_layers
    matrices = {name: math.prod(size) for name, size in t5_sizes(shape).items() if len(size) > 1}

    def count(block: int) -> int:
        return sum(number for name, number in matrices.items() if name.startswith(f"blocks.{block}."))

    heads = shape.heads * chosen.head_dim
    read = 2 * heads * shape.hidden  # keys and values of the encoder's output
    weights = inputs * layers * count(0) + decoder * ((count(layers) - read) * outputs + read * inputs)
    weights += shape.padded_vocab * shape.hidden * outputs
    attention = heads * (layers * inputs**2 + decoder * outputs * (outputs + inputs))
    return 6 * weights + 12 * attention
