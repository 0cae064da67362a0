"""Layouts of the models of `transformers` that the family llama covers: Llama, Qwen2, Qwen3, Arcee and Mistral.

The options decide which of them a model is. A Mistral without a sliding window computes as a Llama, and is written as
one. Options that none of them has, alone or together, are saved in this project's own layout, with a model type of its
own. Matrices are stored alike in all layouts, as [out, in], with the halves of a head in the same order.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2train.convert.hf_layout import MAX_LAYERS, HFLayout, size_of
from gpt2train.convert.hf_qwen2 import AS_LLAMA, FIELD, drop_zero_biases, is_written_as_llama, zero_biases
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import UserError
from gpt2train.model.families import EMBEDDING, HEAD, SCORE, sizes
from gpt2train.model.llama_family import LlamaOptions, options_of
from gpt2train.model.rope_scaling import rope_scaling_of
from gpt2train.model.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from gpt2train.model.lazy_weights import LazyTensor

OWN = "gpt2train_llama"  # model type of what transformers does not have
MAX_CONTEXT = 2**24  # of `model.context`
FREQUENCIES = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # in files of before 2024
ACTIVATIONS = {"swiglu": "silu", "relu2": "relu2"}
TOP = {EMBEDDING: "model.embed_tokens.weight", "ln_f.weight": "model.norm.weight", HEAD: "lm_head.weight"}
TOP[SCORE] = SCORE
BLOCK = {
    "ln_1": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
# Fields that change the model, with the values that it implements; the first one is the default of transformers.
FIXED: dict[str, tuple[Any, ...]] = {
    "use_sliding_window": (False, None),
    "pretraining_tp": (1, None),
    "partial_rotary_factor": (1.0, None),
}
PREFIX = "model."
KV_HEADS = "num_key_value_heads"
MISTRAL_WINDOW = 4096  # sliding window of a Mistral whose config.json does not have the field


@dataclass(frozen=True)
class Variant:
    """A model of `transformers`, and the options that it has."""

    architecture: str  # class of the model
    activation: str = "swiglu"  # the MLP
    qk_norm: bool = False  # True if it has norms of queries and keys
    attention_bias: tuple[str, ...] = ("none", "all")
    """Possible biases of the attention; of two, the field of this name has the choice."""
    mlp_bias: bool = False  # True if the field of this name may be true
    divides: bool = False  # True if the heads must divide the width, also with a `head_dim` of their own
    head_dim: int | None = None  # size of a head if the field is missing; None for `hidden_size / num_attention_heads`
    norm_eps: float = 1e-6  # epsilon of the norms if the field is missing
    kv_heads: int | None = None
    """Heads of keys and values if the field is missing; None for all heads. A null is all heads."""

    def has(self, shape: Shape, chosen: LlamaOptions) -> bool:
        """Return True if a shape with these options is a model of this class."""
        return (
            self.activation == chosen.activation
            and self.qk_norm == chosen.qk_norm
            and chosen.attention_bias in self.attention_bias
            and self.mlp_bias >= chosen.mlp_bias
            and not own_options(chosen)
            and not (self.divides and shape.hidden % shape.heads)
        )


VARIANTS = {
    "llama": Variant("LlamaForCausalLM", mlp_bias=True, divides=True),
    "qwen3": Variant("Qwen3ForCausalLM", qk_norm=True, head_dim=128, kv_heads=32),
    "qwen2": Variant("Qwen2ForCausalLM", attention_bias=("qkv",), kv_heads=32),
    "arcee": Variant("ArceeForCausalLM", "relu2", mlp_bias=True, divides=True, norm_eps=1e-5),
    # Read alone: llama comes first.
    "mistral": Variant("MistralForCausalLM", attention_bias=("none",), divides=True, kv_heads=8),
}


def own_options(chosen: LlamaOptions) -> list[str]:
    """Options that no class of `transformers` has, with their values.

    The norm of an embedding that is not tied is none of them: a folder has it in the rows.
    """
    given = {"logit_softcap": chosen.logit_softcap, "value_embeddings": chosen.value_embeddings}
    found = [f"{name} = {value:g}" for name, value in given.items() if value]
    return [*found, "embedding_norm with tied"] if chosen.embedding_norm and chosen.tied else found


def model_type_of(shape: Shape) -> str | None:
    """Model type of the class of `transformers` that a shape is; None if there is none."""
    chosen = options_of(shape)
    return next((name for name, variant in VARIANTS.items() if variant.has(shape, chosen)), None)


class LlamaLayout(HFLayout):
    """Layout of `LlamaForCausalLM`, `Qwen2ForCausalLM`, `Qwen3ForCausalLM` and `ArceeForCausalLM`.

    `MistralForCausalLM` is read.
    """

    model_types = (*VARIANTS, OWN)
    description = "a decoder with rotary positions and RMSNorm"

    def missing_in_transformers(self, shape: Shape) -> str | None:
        """Return the options that no class of `transformers` has together, with their values; None if one has them."""
        if model_type_of(shape) is not None:
            return None
        chosen, plain = options_of(shape), LlamaOptions()
        if added := own_options(chosen):
            return ", ".join(added)
        names = ("activation", "qk_norm", "attention_bias", "mlp_bias", "head_dim")
        odd = {name: getattr(chosen, name) for name in names if getattr(chosen, name) != getattr(plain, name)}
        if not shape.hidden % shape.heads:
            del odd["head_dim"]
        return ", ".join(f"{name} = {str(value).lower()}" for name, value in odd.items())

    def config(self, shape: Shape, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
        """Return the fields of `config.json` that describe the architecture."""
        model_type, chosen = model_type_of(shape), options_of(shape)
        if model_type is None:
            options = tuple(pair for pair in shape.options if pair[0] != "embedding_norm" or chosen.tied)
            return {**super().config(replace(shape, options=options), tokenizer), "model_type": OWN}
        variant = VARIANTS[model_type]
        scaling, context = json.loads(chosen.rope_scaling or "{}"), shape.context
        if scaling.get("rope_type") == "dynamic":  # beyond the context of the training, which transformers has there
            context = scaling.pop("original_max_position_embeddings") or context
        config = {
            "model_type": model_type,
            "architectures": [variant.architecture],
            "vocab_size": shape.vocab,
            "hidden_size": shape.hidden,
            "intermediate_size": chosen.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": chosen.kv_heads,
            "head_dim": chosen.head_dim,
            "hidden_act": ACTIVATIONS[chosen.activation],
            "max_position_embeddings": context,
            "rms_norm_eps": chosen.norm_eps,
            "rope_theta": chosen.rope_theta,  # read by transformers before 5, and by llama.cpp
            "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": chosen.rope_theta},
            **({"rope_scaling": scaling} if scaling else {}),
            "tie_word_embeddings": chosen.tied,
            "initializer_range": 0.02,
        }
        if len(variant.attention_bias) > 1:
            config["attention_bias"] = chosen.attention_bias == "all"
        if variant.mlp_bias:
            config["mlp_bias"] = chosen.mlp_bias
        return config | (AS_LLAMA if model_type == "qwen2" and is_written_as_llama(shape, tokenizer) else {})

    def exported(self, name: str, tensor: "Tensor", shape: Shape) -> "Tensor":
        """Convert one of our tensors as `HFLayout` does, the rows of an embedding with a norm to their norms."""
        found, chosen = super().exported(name, tensor, shape), options_of(shape)
        if name != EMBEDDING or not chosen.embedding_norm or chosen.tied:
            return found
        rows = found.float()
        return (rows * (rows.square().mean(-1, keepdim=True) + chosen.norm_eps).rsqrt()).to(found.dtype)

    def shape(self, config: dict[str, Any], file: Path) -> Shape:
        """Read the shape as `HFLayout` does; a value that the model does not implement is a `UserError` too."""
        model_type = config["model_type"]
        if model_type == OWN:
            return super().shape(config, file)
        variant = VARIANTS[model_type]
        activation = ACTIVATIONS[variant.activation]
        for key, allowed in {**FIXED, "hidden_act": (activation,)}.items():
            _check(file, key, config.get(key, allowed[0]), allowed)
        kinds = config.get("layer_types") or []
        if not isinstance(kinds, list):
            raise UserError(f"{file}: layer_types is {str(kinds)[:40]}; expected a list")
        for kind in kinds:
            _check(file, "an entry of layer_types", kind, ("full_attention",))
        hidden, heads = size_of(file, config, "hidden_size"), size_of(file, config, "num_attention_heads")
        if variant.divides and hidden % heads:
            raise UserError(f"{file}: hidden_size {hidden} is not divisible by num_attention_heads {heads}")
        bias = variant.attention_bias[config.get("attention_bias", False) is True and len(variant.attention_bias) > 1]
        if bias == "all" and FIELD in config:
            _check(file, FIELD, config[FIELD], ("qkv",))
            bias = "qkv"
        rotary, context = _rotary(config, file, size_of(file, config, "max_position_embeddings"))
        if model_type == "mistral":
            _check_window(file, config, context)
        options = {
            "kv_heads": size_of(file, {KV_HEADS: variant.kv_heads, **config}, KV_HEADS, default=heads),
            "head_dim": size_of(file, config, "head_dim", default=variant.head_dim or hidden // heads),
            "inner": size_of(file, config, "intermediate_size"),
            "activation": variant.activation,
            "qk_norm": variant.qk_norm,
            "attention_bias": bias,
            "mlp_bias": variant.mlp_bias and config.get("mlp_bias", False),
            "tied": config.get("tie_word_embeddings", False),
            **rotary,
            "norm_eps": config.get("rms_norm_eps", variant.norm_eps),
        }
        layers = size_of(file, config, "num_hidden_layers", MAX_LAYERS)
        return self.checked_shape(config, file, options, layers=layers, heads=heads, hidden=hidden, context=context)

    def names(self, shape: Shape) -> dict[str, str]:
        """Map our name of every parameter to its name in the weights file."""
        if model_type_of(shape) is None:
            return super().names(shape)
        return {name: TOP.get(name) or _in_block(name) for name in sizes(shape)}

    def zeros(self, shape: Shape, tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
        """Map names to sizes of further tensors, zeros: biases of the attention's output of a Qwen2 saved as Llama."""
        return zero_biases(shape) if model_type_of(shape) == "qwen2" and is_written_as_llama(shape, tokenizer) else {}

    def found(self, tensors: "Mapping[str, LazyTensor]", shape: Shape) -> "dict[str, LazyTensor]":
        """Add a missing prefix, and skip what follows from the rest: frequencies, zeros, a head that is the embedding.

        Raises:
            UserError: the output embedding is tied by `config.json`, but differs; or a bias is not zero.
        """
        if model_type_of(shape) is not None:  # the files of a base model have no prefix
            tensors = {
                name if name in (HEAD, SCORE) or name.startswith(PREFIX) else PREFIX + name: stored
                for name, stored in tensors.items()
            }
        if options_of(shape).attention_bias == "qkv":
            tensors = drop_zero_biases(tensors)
        theirs = {name: stored for name, stored in tensors.items() if not FREQUENCIES.fullmatch(name)}
        if HEAD in theirs and HEAD not in sizes(shape):
            head, embedding = theirs.pop(HEAD), theirs.get(TOP[EMBEDDING])
            if embedding is not None and not head.equals(embedding):
                stated = "config.json has tie_word_embeddings = true; set it to false"
                raise UserError(f"{HEAD} differs from {TOP[EMBEDDING]}, but {stated}")
        return theirs


def _in_block(name: str) -> str:
    """Name of a parameter of a block in the weights file."""
    _, layer, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"model.layers.{layer}.{BLOCK[module]}.{kind}"


def _rotary(config: dict[str, Any], file: Path, context: int) -> tuple[dict[str, Any], int]:
    """Options of the rotary positions, from where `transformers` has them since or before version 5, and the context.

    Of both tables `rope_scaling` alone is read, as by `transformers`: users add it by hand, for longer texts.

    Raises:
        UserError: the rotary positions are scaled in an unknown way.
    """
    tables = {key: config.get(key) or {} for key in ("rope_scaling", "rope_parameters")}
    for key, table in tables.items():
        if not isinstance(table, dict):
            raise UserError(f"{file}: {key} is {str(table)[:40]}; expected a table")
        _check(file, f"partial_rotary_factor in {key}", table.get("partial_rotary_factor", 1.0), (1.0, None))
    rope = dict(tables["rope_scaling"] or tables["rope_parameters"])
    options: dict[str, Any] = {"rope_theta": rope.get("rope_theta", config.get("rope_theta", 10_000.0))}
    kind = rope.get("rope_type", rope.get("type"))
    original = config.get("original_max_position_embeddings", rope.get("original_max_position_embeddings", context))
    if kind == "dynamic":
        original = context
    if kind == "yarn" and rope.get("factor") is None and isinstance(original, int) and original > 0:
        rope["factor"] = context / original
    try:
        scaling = rope_scaling_of({**rope, "original_max_position_embeddings": original})
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    if scaling is None:
        return options, context
    longest = min(MAX_CONTEXT, int(context * scaling.factor)) if kind == "dynamic" else context
    return options | {"rope_scaling": scaling.model_dump_json(exclude_none=True)}, max(context, longest)


def _check_window(file: Path, config: dict[str, Any], context: int) -> None:
    """Check that a text of the context length fits into the sliding window of a Mistral.

    Raises:
        UserError: it does not.
    """
    window = config.get("sliding_window", MISTRAL_WINDOW)
    if window is None or (type(window) is int and window >= context):
        return
    stated = f"is {str(window)[:40]}" if "sliding_window" in config else f"is missing, which means {window}"
    raise UserError(
        f"{file}: sliding_window {stated}, but the context has {context} tokens, and only a window that contains it, "
        "or null, is supported; take a model without a sliding window, or lower max_position_embeddings"
    )


def _check(file: Path, key: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{file}: {key} is {str(value)[:40]!r}, but only {allowed[0]!r} is supported")
