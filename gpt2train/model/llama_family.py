"""Options and parameter sizes of the model family llama; does not import torch.

The defaults give a Llama 2 (Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models").
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from operator import not_
from typing import Literal

from pydantic import Field, field_validator

from gpt2train.model.rope_scaling import parse_rope_scaling
from gpt2train.model.shape import Shape, Sizes, all_blocks
from gpt2train.settings import Settings

VALUE_TABLES = "values."  # start of the names of the value embeddings
INNER_MULTIPLE = 64  # of the default width of a SwiGLU: fast for matrix kernels, and divisible by up to 64 ranks


class LlamaOptions(Settings):
    """Settings of the family llama alone, the group [model.options]."""

    kv_heads: int = Field(0, ge=0, le=2**16)
    """Heads of keys and values (grouped-query attention); must divide `heads`. 0: `heads`."""
    head_dim: int = Field(0, ge=0, le=2**16)
    """Size of a head, an even number. 0: `hidden / heads`."""
    inner: int = Field(0, ge=0, le=2**20)
    """Width of the MLP. 0: for swiglu 8/3 of `hidden`, rounded up to a multiple of 64; for relu2 4 times `hidden`."""
    activation: Literal["swiglu", "relu2"] = "swiglu"
    """MLP: swiglu has three matrices, down(silu(gate(x)) * up(x)); relu2 has two, down(relu(up(x))^2)."""
    qk_norm: bool = False
    """RMSNorm of queries and keys, per head, before the rotation."""
    attention_bias: Literal["none", "qkv", "all"] = "none"
    """Biases of the attention: none, of queries, keys and values, or also of the output projection."""
    mlp_bias: bool = False
    """Biases of the MLP."""
    tied: bool = False
    """Use the token embedding as the output projection."""
    rope_theta: float = Field(10_000.0, gt=0)
    """Base of the rotary frequencies."""
    norm_eps: float = Field(1e-5, gt=0, lt=1)
    """Epsilon of all norms."""
    # Left out of a run's files where they are off, so that those of older runs stay the same.
    rope_scaling: str = Field("", exclude_if=not_)
    """Scaling of the rotary positions for texts longer than those of training, as the JSON object `rope_parameters` (or
    `rope_scaling`) of a `config.json`: linear, dynamic, llama3 or yarn. Empty: none."""
    logit_softcap: float = Field(0.0, ge=0, le=1e4, exclude_if=not_)
    """Bound of the logits: cap * tanh(logit / cap), 30 in Gemma 2. `transformers` then does not load the merged model.
    0: none."""
    embedding_norm: bool = Field(False, exclude_if=not_)
    """RMSNorm without weights of the token embedding, before the first block (modded-nanogpt). A merged model has it in
    the rows of the embedding; with `tied`, `transformers` does not load it."""
    value_embeddings: int = Field(0, ge=0, le=5_000, exclude_if=not_)
    """Number of further tables of the vocabulary whose rows are added to the values of attention: table i to those of
    block i and of block `layers - value_embeddings + i`. At most half of `layers`. `transformers` then does not load
    the merged model. 0: none."""

    @field_validator("rope_scaling")
    @classmethod
    def _known(cls, given: str) -> str:
        scaling = parse_rope_scaling(given)
        return "" if scaling is None else scaling.model_dump_json(exclude_none=True)


@cache
def options_of(shape: Shape) -> LlamaOptions:
    """Options of a shape, with the values of those that follow from others."""
    given = LlamaOptions.model_validate(dict(shape.options))
    wide = -(-8 * shape.hidden // (3 * INNER_MULTIPLE)) * INNER_MULTIPLE
    return given.model_copy(
        update={
            "kv_heads": given.kv_heads or shape.heads,
            "head_dim": shape.head_dim,
            "inner": given.inner or (wide if given.activation == "swiglu" else 4 * shape.hidden),
        }
    )


def complete_shape(shape: Shape) -> Shape:
    """Shape with options that follow from others; ValueError if the size of a head is odd, or no whole number."""
    if shape.hidden % shape.heads and not dict(shape.options).get("head_dim"):
        raise ValueError(f"hidden {shape.hidden} is not a multiple of heads {shape.heads}; change one, or set head_dim")
    if shape.head_dim % 2:
        raise ValueError(f"a head has the size {shape.head_dim}; rotary positions need an even one")
    chosen = options_of(shape)
    if 2 * chosen.value_embeddings > shape.layers:
        raise ValueError(
            f"value_embeddings {chosen.value_embeddings} is more than half of layers {shape.layers}: each table "
            f"has two blocks of its own; give at most {shape.layers // 2}"
        )
    scaling = parse_rope_scaling(chosen.rope_scaling)
    if scaling is not None and scaling.rope_type == "dynamic" and shape.head_dim < 4:
        raise ValueError(f"a head has the size {shape.head_dim}; dynamic scaling of rotary positions needs 4 or more")
    if scaling is not None and scaling.rope_type == "yarn" and chosen.rope_theta <= 1:
        raise ValueError(f"rope_theta is {chosen.rope_theta:g}; yarn needs more than 1")
    return replace(shape, options=tuple(chosen.model_dump(mode="json").items()))


def llama_sizes(shape: Shape) -> Sizes:
    """Sizes of the parameters of a model of this family."""
    width, chosen = shape.hidden, options_of(shape)
    q_width, kv_width = (heads * chosen.head_dim for heads in (shape.heads, chosen.kv_heads))
    qkv_bias, proj_bias = chosen.attention_bias != "none", chosen.attention_bias == "all"
    block: Sizes = {
        "ln_1.weight": (width,),
        **_linear("attn.q", q_width, width, qkv_bias),
        **_linear("attn.k", kv_width, width, qkv_bias),
        **_linear("attn.v", kv_width, width, qkv_bias),
        **({f"attn.{x}_norm.weight": (chosen.head_dim,) for x in "qk"} if chosen.qk_norm else {}),
        **_linear("attn.proj", width, q_width, proj_bias),
        "ln_2.weight": (width,),
        **(_linear("gate", chosen.inner, width, chosen.mlp_bias) if chosen.activation == "swiglu" else {}),
        **_linear("up", chosen.inner, width, chosen.mlp_bias),
        **_linear("down", width, chosen.inner, chosen.mlp_bias),
    }
    return {
        "wte.weight": (shape.padded_vocab, width),
        **{f"{VALUE_TABLES}{table}.weight": (shape.padded_vocab, kv_width) for table in range(value_embeddings(shape))},
        **all_blocks(block, shape.layers),
        "ln_f.weight": (width,),
        **({} if chosen.tied else {"lm_head.weight": (shape.padded_vocab, width)}),
    }


def value_embeddings(shape: Shape) -> int:
    """Number of tables of value embeddings."""
    return int(dict(shape.options).get("value_embeddings", 0))


def blocks_of_table(shape: Shape, table: int) -> tuple[int, int]:
    """Numbers of the blocks to whose values a table of value embeddings is added."""
    return table, shape.layers - value_embeddings(shape) + table


def used_beside(shape: Shape) -> Mapping[str, Collection[int]]:
    """Blocks beside which the value embeddings are used."""
    return {f"{VALUE_TABLES}{table}.weight": blocks_of_table(shape, table) for table in range(value_embeddings(shape))}


def initial_std(name: str, shape: Shape) -> float | None:
    """Standard deviation of the initial values of a matrix; None for that of GPT-2.

    Value embeddings begin with that of the values to which they are added, products of a normed input of width H with
    rows of N(0, 0.02). With 0.02 they gained nothing within 576 steps of a model of 0.5 million parameters, and with
    half or twice this value less than with it (docs/train/models.md).
    """
    return 0.02 * math.sqrt(shape.hidden) if name.startswith(VALUE_TABLES) else None


def more_saved(shape: Shape) -> int:
    """Numbers per token that a block saves beyond the rule: the output of the SiLU."""
    chosen = options_of(shape)
    return chosen.inner if chosen.activation == "swiglu" else 0


def head_norms(shape: Shape) -> int:
    """Numbers per token that the norms of queries and keys save, in float32."""
    chosen = options_of(shape)
    return (shape.heads + chosen.kv_heads) * chosen.head_dim if chosen.qk_norm else 0


def independent_length(shape: Shape) -> int:
    """Longest input whose rotary frequencies do not follow from its length: with dynamic scaling the original."""
    scaling = parse_rope_scaling(options_of(shape).rope_scaling)
    if scaling is None or scaling.rope_type != "dynamic":
        return shape.context
    return scaling.original_max_position_embeddings or 0


def _linear(name: str, rows: int, columns: int, bias: bool) -> Sizes:
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}
