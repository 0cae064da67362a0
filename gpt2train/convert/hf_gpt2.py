"""Differences between this project's tensors and those of Hugging Face's GPT-2.

* The names differ.
* Hugging Face's `Conv1D` stores matrices as [in, out].
* The columns of its fused projection are [(q, k, v), head, head_dim], our rows are [head, (q, k, v), head_dim].
* Our vocabulary is padded to a multiple of 128, theirs is not.

The output embedding is tied and stored once in both.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.hf_layout import MAX_LAYERS, HFLayout, size_of
from gpt2train.errors import UserError
from gpt2train.model.families import SCORE
from gpt2train.model.lazy_weights import LazyTensor
from gpt2train.model.shape import Shape

PREFIX = "transformer."
MASKS = re.compile(re.escape(PREFIX) + r"h\.\d+\.attn\.(masked_)?bias")  # causal masks in old files

TOP = ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")  # same names in both
BLOCK = {"ln_1": "ln_1", "attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "ln_2": "ln_2"} | {
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}

# Settings of Hugging Face's GPT-2 that this project's model does not have, with the values that it implements.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}

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

    model_types = ("gpt2",)
    description = "a GPT-2, that is a decoder with learned positions"

    def in_transformers(self, shape: Shape) -> bool:
        """Return True: `transformers` loads every GPT-2."""
        return True

    def config(self, shape: Shape) -> dict[str, Any]:
        """Return the fields of `config.json` that describe the architecture."""
        return {
            **{key: values[0] for key, values in FIXED.items()},
            **PUBLISHED,
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": shape.vocab,
            "n_positions": shape.context,
            "n_ctx": shape.context,
            "n_embd": shape.hidden,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_inner": None,
        }

    def shape(self, config: dict[str, Any], file: Path) -> Shape:
        """Read the shape from the fields of `config.json`.

        Raises:
            UserError: a field is missing or wrong, or has a value that the model does not implement.
        """
        for key, allowed in FIXED.items():
            if config.get(key, allowed[0]) not in allowed:
                raise UserError(f"{file}: {key} is {config[key]!r}, but only {allowed[0]!r} is supported")
        shape = Shape(
            vocab=size_of(file, config, "vocab_size"),
            layers=size_of(file, config, "n_layer", MAX_LAYERS),
            heads=size_of(file, config, "n_head"),
            hidden=size_of(file, config, "n_embd"),
            context=size_of(file, config, "n_positions" if "n_positions" in config else "n_ctx"),
        )
        if shape.hidden % shape.heads:
            raise UserError(f"{file}: n_embd {shape.hidden} is not divisible by n_head {shape.heads}")
        if config.get("n_inner") not in (None, 4 * shape.hidden):
            raise UserError(f"{file}: n_inner is {config['n_inner']}, only 4 x n_embd is supported")
        return shape

    def names(self, shape: Shape) -> dict[str, str]:
        """Map our name of every parameter to Hugging Face's."""
        pairs = {name: PREFIX + name for name in TOP} | ({SCORE: SCORE} if shape.labels else {})
        for layer in range(shape.layers):
            for ours, theirs in BLOCK.items():
                for part in ("weight", "bias"):
                    pairs[f"blocks.{layer}.{ours}.{part}"] = f"{PREFIX}h.{layer}.{theirs}.{part}"
        return pairs

    def sizes(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        """Map our name of every parameter to its size in a Hugging Face folder."""
        return {name: size[::-1] if is_matrix(name) else size for name, size in super().sizes(shape).items()}

    def exported(self, name: str, tensor: Tensor, shape: Shape) -> Tensor:
        """Convert one of our tensors to Hugging Face's layout, without the padding of the vocabulary."""
        if ".qkv." in name:
            tensor = split_heads(tensor, shape.heads)
        return tensor.t().contiguous() if is_matrix(name) else super().exported(name, tensor, shape)

    def imported(self, name: str, tensor: Tensor, shape: Shape) -> Tensor:
        """Convert one of Hugging Face's tensors to our layout, with padded vocabulary."""
        if is_matrix(name):
            tensor = tensor.t()
        if ".qkv." in name:
            return join_heads(tensor, shape.heads)
        return super().imported(name, tensor, shape).contiguous()

    def found(self, tensors: Mapping[str, LazyTensor], shape: Shape) -> dict[str, LazyTensor]:
        """Add the prefix `transformer.` where it is missing, as in the published files, and skip causal masks.

        Raises:
            UserError: the output embedding is not tied.
        """
        named = {
            name if name == SCORE else PREFIX + name.removeprefix(PREFIX): stored for name, stored in tensors.items()
        }
        named = {name: stored for name, stored in named.items() if not MASKS.fullmatch(name)}
        head, embedding = named.pop(f"{PREFIX}lm_head.weight", None), named.get(f"{PREFIX}wte.weight")
        if head is not None and not (embedding is not None and _equal(head, embedding)):
            raise UserError(
                "the output embedding lm_head.weight differs from wte.weight; only tied embeddings are supported"
            )
        return named


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """Reorder fused projection rows [head, (q, k, v), head_dim] -> [(q, k, v), head, head_dim] in dimension 0."""
    return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def join_heads(rows: Tensor, heads: int) -> Tensor:
    """Reorder fused projection rows [(q, k, v), head, head_dim] -> [head, (q, k, v), head_dim] in dimension 0."""
    return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def is_matrix(name: str) -> bool:
    """Return True if Hugging Face stores this parameter transposed (`Conv1D`)."""
    return name.startswith("blocks.") and name.endswith(".weight") and ".ln_" not in name


def _equal(one: LazyTensor, other: LazyTensor) -> bool:
    return one.size == other.size and torch.equal(one.read(torch.float32), other.read(torch.float32))
