"""Differences between this project's tensors and those of Hugging Face's GPT-2.

* The names differ.
* Hugging Face's `Conv1D` stores matrices as [in, out].
* The columns of its fused projection are [(q, k, v), head, head_dim], our rows are [head, (q, k, v), head_dim].
* Our vocabulary is padded to a multiple of 128, theirs is not.

A tied output embedding is stored once in both. Options that `GPT2LMHeadModel` does not have (no biases, heads of
another size) are saved in this project's own layout, with a model type of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2train.convert.hf_layout import MAX_LAYERS, HFLayout, size_of
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import UserError
from gpt2train.model.families import EMBEDDING, HEAD, SCORE, sizes
from gpt2train.model.gpt2_family import drop_published, options_of
from gpt2train.model.shape import Option, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from gpt2train.model.lazy_weights import LazyTensor

OWN = "gpt2train_gpt2"  # model type of what transformers does not have
PREFIX = "transformer."
OUTPUTS = (HEAD, SCORE)  # names without the prefix
MASKS = re.compile(re.escape(PREFIX) + r"h\.\d+\.attn\.(masked_)?bias")  # causal masks in old files

# Values of `activation_function`, with those of our option: the converter of transformers writes `gelu_fast`, the same
# function with a rounded constant, for models that Megatron-LM trained with its fused GELU.
ACTIVATIONS = {"gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "gelu": "gelu"}
ACTIVATIONS |= {"relu": "relu"}
BLOCK = {"ln_1": "ln_1", "attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "ln_2": "ln_2"}
BLOCK |= {"up": "mlp.c_fc", "down": "mlp.c_proj"}

# Settings of Hugging Face's GPT-2 that this project's model does not have, with the value that it implements.
FIXED: dict[str, Any] = {
    "model_type": "gpt2",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}

# Names that transformers reads as those of GPT-2, and some programs write.
ALIASES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
ALIASES |= {"max_position_embeddings": "n_positions"}

# Further fields in the config of OpenAI's published GPT-2 (also `n_ctx`, which llama.cpp's converter needs). The values
# are transformers' defaults, so they have no effect there.
PUBLISHED: dict[str, Any] = {
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
    "initializer_range": 0.02,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
}


class GPT2Layout(HFLayout):
    """Layout of `GPT2LMHeadModel` and `GPT2ForSequenceClassification`."""

    model_types = ("gpt2", OWN)
    description = "a GPT-2, that is a decoder with learned positions"

    def missing_in_transformers(self, shape: Shape) -> str | None:
        """Return the first option that `GPT2LMHeadModel` does not have, with its value; None if it has all."""
        chosen = options_of(shape)
        if not chosen.bias:
            return "bias = false"
        return f"head_dim = {shape.head_dim}" if shape.heads * shape.head_dim != shape.hidden else None

    def config(self, shape: Shape, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
        """Return the fields of `config.json` that describe the architecture."""
        if not self.in_transformers(shape):
            return {**super().config(shape, tokenizer), "model_type": OWN}
        chosen = options_of(shape)
        return {
            **FIXED,
            **PUBLISHED,
            "activation_function": chosen.activation,
            "architectures": ["GPT2LMHeadModel"],
            "tie_word_embeddings": chosen.tied,
            "vocab_size": shape.vocab,
            "n_positions": shape.context,
            "n_ctx": shape.context,
            "n_embd": shape.hidden,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_inner": None if chosen.inner == 4 * shape.hidden else chosen.inner,
        }

    def shape(self, config: dict[str, Any], file: Path) -> Shape:
        """Read the shape as `HFLayout` does; a value that the model does not implement is a `UserError` too."""
        if config.get("model_type") == OWN:
            return super().shape(config, file)
        config = {ALIASES.get(key, key): value for key, value in config.items()}
        for key, value in FIXED.items():
            if config.get(key, value) != value:
                raise UserError(f"{file}: {key} is {config[key]!r}, but only {value!r} is supported")
        activation, tied = config.get("activation_function", "gelu_new"), config.get("tie_word_embeddings", True)
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            known = ", ".join(map(repr, ACTIVATIONS))
            raise UserError(f"{file}: activation_function is {str(activation)[:40]!r}, but only {known} are supported")
        if not isinstance(tied, bool):
            raise UserError(f"{file}: tie_word_embeddings is {str(tied)[:40]!r}; expected true or false")
        shape = Shape(
            vocab=size_of(file, config, "vocab_size"),
            layers=size_of(file, config, "n_layer", MAX_LAYERS),
            heads=size_of(file, config, "n_head"),
            hidden=size_of(file, config, "n_embd"),
            context=size_of(file, config, "n_positions" if "n_positions" in config else "n_ctx"),
        )
        if shape.hidden % shape.heads:
            raise UserError(f"{file}: n_embd {shape.hidden} is not divisible by n_head {shape.heads}")
        inner = size_of(file, config, "n_inner", default=0)
        options: dict[str, Option] = {"inner": inner, "activation": ACTIVATIONS[activation], "tied": tied}
        return drop_published(replace(shape, options=tuple(options.items())))

    def names(self, shape: Shape) -> dict[str, str]:
        """Map our name of every parameter to Hugging Face's."""
        if not self.in_transformers(shape):
            return super().names(shape)
        return {name: name if name in OUTPUTS else PREFIX + _theirs(name) for name in sizes(shape)}

    def sizes(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        """Map our name of every parameter to its size in a Hugging Face folder."""
        stored = super().sizes(shape)
        if not self.in_transformers(shape):
            return stored
        return {name: size[::-1] if is_matrix(name) else size for name, size in stored.items()}

    def exported(self, name: str, tensor: "Tensor", shape: Shape) -> "Tensor":
        """Convert one of our tensors to Hugging Face's layout, without the padding of the vocabulary."""
        if not self.in_transformers(shape):
            return super().exported(name, tensor, shape)
        if ".qkv." in name:
            tensor = split_heads(tensor, shape.heads)
        return tensor.t().contiguous() if is_matrix(name) else super().exported(name, tensor, shape)

    def imported(self, name: str, tensor: "Tensor", shape: Shape) -> "Tensor":
        """Convert one of Hugging Face's tensors to our layout, with padded vocabulary."""
        if not self.in_transformers(shape):
            return super().imported(name, tensor, shape)
        if is_matrix(name):
            tensor = tensor.t()
        if ".qkv." in name:
            return join_heads(tensor, shape.heads)
        return super().imported(name, tensor, shape).contiguous()

    def found(self, tensors: "Mapping[str, LazyTensor]", shape: Shape) -> "dict[str, LazyTensor]":
        """Add the prefix `transformer.` where it is missing, as in the published files, and skip causal masks.

        Raises:
            UserError: the output embedding is tied by `config.json`, but differs.
        """
        if not self.in_transformers(shape):
            return super().found(tensors, shape)
        named = {
            name if name == SCORE else PREFIX + name.removeprefix(PREFIX): stored for name, stored in tensors.items()
        }
        named = {name: stored for name, stored in named.items() if not MASKS.fullmatch(name)}
        if (head := named.pop(PREFIX + HEAD, None)) is None:
            return named
        if HEAD in sizes(shape):
            return named | {HEAD: head}
        embedding = named.get(PREFIX + EMBEDDING)
        if embedding is None or not head.equals(embedding):
            remedy = "for one that is not tied, set tie_word_embeddings to false in config.json"
            raise UserError(f"the output embedding {HEAD} differs from {EMBEDDING}; {remedy}")
        return named


def _theirs(name: str) -> str:
    """Hugging Face's name of a parameter, without the prefix."""
    if not name.startswith("blocks."):
        return name
    _, layer, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"h.{layer}.{BLOCK[module]}.{kind}"


def split_heads(rows: "Tensor", heads: int) -> "Tensor":
    """Reorder fused projection rows [head, (q, k, v), head_dim] -> [(q, k, v), head, head_dim] in dimension 0."""
    return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def join_heads(rows: "Tensor", heads: int) -> "Tensor":
    """Reorder fused projection rows [(q, k, v), head, head_dim] -> [head, (q, k, v), head_dim] in dimension 0."""
    return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def is_matrix(name: str) -> bool:
    """Return True if Hugging Face stores this parameter transposed (`Conv1D`)."""
    return name.startswith("blocks.") and name.endswith(".weight") and ".ln_" not in name
