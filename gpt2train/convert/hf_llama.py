"""Layouts of the models of `transformers` that the family llama covers: Llama, Qwen2, Qwen3 and Arcee.

The options decide which of them a model is. A combination of options that none of them has is saved in this project's
own layout, with a model type of its own. Matrices are stored alike in all layouts, as [out, in], with the halves of a
head in the same order.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.hf_layout import MAX_LAYERS, HFLayout, checked_shape, size_of
from gpt2train.errors import UserError
from gpt2train.model.families import EMBEDDING, HEAD, SCORE, sizes
from gpt2train.model.lazy_weights import LazyTensor
from gpt2train.model.llama_family import LlamaOptions, options_of
from gpt2train.model.shape import Shape

OWN = "gpt2train_llama"  # model type of what transformers does not have
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


@dataclass(frozen=True)
class Variant:
    """A model of `transformers`, and the options that it has.

    Attributes:
        architecture: class of the model.
        activation: the MLP.
        qk_norm: True if it has norms of queries and keys.
        attention_bias: possible biases of the attention; of two, the field of this name has the choice.
        mlp_bias: True if the field of this name may be true.
        divides: True if the heads must divide the width, also with a `head_dim` of their own.
        head_dim: size of a head if the field is missing; None for `hidden_size / num_attention_heads`.
        norm_eps: epsilon of the norms if the field is missing.
    """

    architecture: str
    activation: str = "swiglu"
    qk_norm: bool = False
    attention_bias: tuple[str, ...] = ("none", "all")
    mlp_bias: bool = False
    divides: bool = False
    head_dim: int | None = None
    norm_eps: float = 1e-6

    def has(self, shape: Shape, chosen: LlamaOptions) -> bool:
        """Return True if a shape with these options is a model of this class."""
        return (
            self.activation == chosen.activation
            and self.qk_norm == chosen.qk_norm
            and chosen.attention_bias in self.attention_bias
            and self.mlp_bias >= chosen.mlp_bias
            and not (self.divides and shape.hidden % shape.heads)
        )


VARIANTS = {
    "llama": Variant("LlamaForCausalLM", mlp_bias=True, divides=True),
    "qwen3": Variant("Qwen3ForCausalLM", qk_norm=True, head_dim=128),
    "qwen2": Variant("Qwen2ForCausalLM", attention_bias=("qkv",)),
    "arcee": Variant("ArceeForCausalLM", "relu2", mlp_bias=True, divides=True, norm_eps=1e-5),
}


def model_type_of(shape: Shape) -> str | None:
    """Model type of the class of `transformers` that a shape is; None if there is none."""
    chosen = options_of(shape)
    return next((name for name, variant in VARIANTS.items() if variant.has(shape, chosen)), None)


class LlamaLayout(HFLayout):
    """Layout of `LlamaForCausalLM`, `Qwen2ForCausalLM`, `Qwen3ForCausalLM` and `ArceeForCausalLM`."""

    model_types = (*VARIANTS, OWN)
    description = "a decoder with rotary positions and RMSNorm"

    def in_transformers(self, shape: Shape) -> bool:
        """Return True if the package `transformers` loads the folder of a model."""
        return model_type_of(shape) is not None

    def config(self, shape: Shape) -> dict[str, Any]:
        """Return the fields of `config.json` that describe the architecture."""
        model_type, chosen = model_type_of(shape), options_of(shape)
        if model_type is None:
            return {**super().config(shape), "model_type": OWN}
        variant = VARIANTS[model_type]
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
            "max_position_embeddings": shape.context,
            "rms_norm_eps": chosen.norm_eps,
            "rope_theta": chosen.rope_theta,  # read by transformers before 5, and by llama.cpp
            "rope_parameters": {"rope_type": "default", "rope_theta": chosen.rope_theta},
            "tie_word_embeddings": chosen.tied,
            "initializer_range": 0.02,
        }
        if len(variant.attention_bias) > 1:
            config["attention_bias"] = chosen.attention_bias == "all"
        if variant.mlp_bias:
            config["mlp_bias"] = chosen.mlp_bias
        return config

    def shape(self, config: dict[str, Any], file: Path) -> Shape:
        """Read the shape from the fields of `config.json`.

        Raises:
            UserError: a field is missing or wrong, or has a value that the model does not implement.
        """
        model_type = config["model_type"]
        if model_type == OWN:
            return super().shape(config, file)
        variant = VARIANTS[model_type]
        activation = ACTIVATIONS[variant.activation]
        for key, allowed in {**FIXED, "hidden_act": (activation,)}.items():
            _check(file, key, config.get(key, allowed[0]), allowed)
        for kind in config.get("layer_types") or ():
            _check(file, "an entry of layer_types", kind, ("full_attention",))
        hidden, heads = size_of(file, config, "hidden_size"), size_of(file, config, "num_attention_heads")
        if variant.divides and hidden % heads:
            raise UserError(f"{file}: hidden_size {hidden} is not divisible by num_attention_heads {heads}")
        bias = variant.attention_bias[config.get("attention_bias", False) is True and len(variant.attention_bias) > 1]
        options = {
            "kv_heads": _size_or(file, config, "num_key_value_heads", heads),
            "head_dim": _size_or(file, config, "head_dim", variant.head_dim or hidden // heads),
            "inner": size_of(file, config, "intermediate_size"),
            "activation": variant.activation,
            "qk_norm": variant.qk_norm,
            "attention_bias": bias,
            "mlp_bias": variant.mlp_bias and config.get("mlp_bias", False),
            "tied": config.get("tie_word_embeddings", False),
            "rope_theta": _rope_theta(config, file),
            "norm_eps": config.get("rms_norm_eps", variant.norm_eps),
        }
        fields = {
            "layers": size_of(file, config, "num_hidden_layers", MAX_LAYERS),
            "heads": heads,
            "hidden": hidden,
            "context": size_of(file, config, "max_position_embeddings"),
            "family": self.family,
            "options": options,
        }
        return checked_shape(fields, size_of(file, config, "vocab_size"), file)

    def names(self, shape: Shape) -> dict[str, str]:
        """Map our name of every parameter to its name in the weights file."""
        if model_type_of(shape) is None:
            return super().names(shape)
        return {name: TOP.get(name) or _in_block(name) for name in sizes(shape)}

    def found(self, tensors: Mapping[str, LazyTensor], shape: Shape) -> dict[str, LazyTensor]:
        """Skip what follows from the rest: stored rotary frequencies, and a head that equals a tied embedding.

        Raises:
            UserError: the output embedding is tied by `config.json`, but differs.
        """
        theirs = {name: stored for name, stored in tensors.items() if not FREQUENCIES.fullmatch(name)}
        if HEAD in theirs and HEAD not in sizes(shape):
            head, embedding = theirs.pop(HEAD), theirs.get(TOP[EMBEDDING])
            if embedding is not None and not _equal(head, embedding):
                raise UserError(
                    f"{HEAD} differs from {TOP[EMBEDDING]}, but config.json has tie_word_embeddings = true; "
                    "set it to false"
                )
        return theirs


def _in_block(name: str) -> str:
    """Name of a parameter of a block in the weights file."""
    _, layer, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"model.layers.{layer}.{BLOCK[module]}.{kind}"


def _rope_theta(config: dict[str, Any], file: Path) -> Any:
    """Base of the rotary frequencies, from where `transformers` has it since or before version 5.

    Raises:
        UserError: the rotary positions are scaled.
    """
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key) or {}
        if not isinstance(rope, dict):
            raise UserError(f"{file}: {key} is {str(rope)[:40]}; expected a table")
        _check(file, f"rope_type in {key}", rope.get("rope_type", rope.get("type", "default")), ("default",))
        _check(file, f"partial_rotary_factor in {key}", rope.get("partial_rotary_factor", 1.0), (1.0, None))
    return (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10_000.0))


def _size_or(file: Path, config: dict[str, Any], key: str, default: int) -> int:
    return default if config.get(key) is None else size_of(file, config, key)


def _check(file: Path, key: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{file}: {key} is {str(value)[:40]!r}, but only {allowed[0]!r} is supported")


def _equal(one: LazyTensor, other: LazyTensor) -> bool:
    return one.size == other.size and torch.equal(_read(one), _read(other))


def _read(stored: LazyTensor) -> Tensor:
    return stored.read(torch.float32)
